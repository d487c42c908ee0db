"""The probe: does a container keep the promises of our sandbox, as the host sees it and as code inside finds it?"""
