"""State that earlier releases wrote, and that later ones would write."""
