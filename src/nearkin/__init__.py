"""nearkin: deep metric learning with proxies."""
