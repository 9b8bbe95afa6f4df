"""The processes of a worker: the parent starts them, replaces dead ones and keeps standby processes ready."""
