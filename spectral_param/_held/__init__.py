"""Plain weights that an optimizer's steps keep in their sets: their record, the steps, the hooks."""
