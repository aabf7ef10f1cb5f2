"""What users call from Python; its names are given on by ``equipoise`` itself."""
