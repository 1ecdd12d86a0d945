//! Tests of the parts that an embedding program does not see.

#[cfg(test)]
mod growth;
#[cfg(test)]
mod race;
#[cfg(test)]
mod tables;
