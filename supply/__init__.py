"""What the project is made of, and where it runs: for whoever releases or audits it. No part of the package."""
