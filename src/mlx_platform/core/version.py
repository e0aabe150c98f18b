"""The version of this distribution, where every room can read it without loading the others."""

VERSION = "0.1.0"
