"""Tools that build the site from docs/, and measure and guard its text."""
