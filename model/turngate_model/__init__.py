"""The formal side of Turngate: the machine, the abstract session, the mechanism, and what checks them."""
