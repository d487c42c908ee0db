"""The words of the wall: all that both ends speak, and so the only part of the guest that the host imports."""
