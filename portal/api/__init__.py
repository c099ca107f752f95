"""What the portal's API does, one module for each noun. portal/routes.py says how a call comes here."""
