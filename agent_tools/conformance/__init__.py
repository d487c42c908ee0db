"""The probe checks, from the host and from inside, whether a container has the isolation of a sandbox."""
