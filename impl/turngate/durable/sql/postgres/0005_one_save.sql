-- Steps that are saved alone are saved like several steps together, by save.
DROP FUNCTION {s}.save_plain;
