"""The protocols between host and guest: the only part of the guest that the host imports."""
