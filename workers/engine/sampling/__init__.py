"""From scores to tokens: grammar masks, penalties, processors, bans, draws. May import engine/plan and
engine/processors."""
