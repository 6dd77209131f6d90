"""What people see of cards, plans and ledgers."""
