"""From scores to tokens: grammar masks, penalties, draws. May import engine/plan."""
