"""Tools of the model that answers: they work in one folder, and ask the user before they change anything."""
