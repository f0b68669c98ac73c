"""Generation engines behind one interface."""
