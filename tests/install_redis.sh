#!/usr/bin/env bash
# Redis for the tests, on a Debian machine that may be installed on; nothing is started.
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive
# The package would start a server of its own.
export RUNLEVEL=1

apt-get update -qq
apt-get install -y -qq --no-install-recommends redis-server
