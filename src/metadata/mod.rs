//! What the attributes of groups and datasets mean. Imports `n5` only; pure.
