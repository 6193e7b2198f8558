"""What is remembered of prompts, and the sections by which long ones are tokenised. It imports nothing else of ours."""
