"""Does a container hold what our sandbox promises? What the host reads of it, and what code inside it finds."""
