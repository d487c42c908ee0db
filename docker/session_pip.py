# Has pip take the session's place for its environment: what the image has counts as installed and is never removed.
import os
import sys

if os.path.isdir("/opt/session"):
    sys.prefix = sys.exec_prefix = "/opt/session"
