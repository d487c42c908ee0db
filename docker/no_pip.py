# Answers pip in sandboxes where no packages can be installed, and fails as pip would.
import sys


def main(args=None):
    """Answer pip's arguments; return its exit code."""
    from agent_tools_guest.kernel.installed import tell_of_packages

    words = sys.argv[1:] if args is None else args
    return 0 if tell_of_packages(words, lambda sentence: print(sentence, file=sys.stderr)) else 1


if __name__ == "__main__":
    sys.exit(main())
