"""Static INT8: inspect, calibrate, build, verify."""
