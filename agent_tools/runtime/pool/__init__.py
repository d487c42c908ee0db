"""Sandboxes made ahead: each is used once, by one session, and gets that session's work_dir by a rename.

A sandbox made ahead has a blank folder mounted as its work_dir. A rename of that folder to where the session's work_dir
is to be leaves it mounted, so nothing has to be mounted, copied, or asked of the engine when a session begins.
"""
