"""What two versions have and have not in common, part by part."""
