"""What `jobs` and `cluster` share: processes on devices of their own, locks, logs, one run loop."""
