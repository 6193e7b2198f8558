"""What a person sees who opens the router in a browser: a home page, and the description of the API. Built when it is
asked for, from the routes of the router; imports HTTP, and nothing of the API itself."""
