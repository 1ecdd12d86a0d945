//! Names that clients give their connections.

use super::failure::Failure;

/// The longest name, in bytes.
const NAME_BYTES_MAX: usize = 128;

/// Refuses what is no name of a connection.
pub fn check(name: &[u8]) -> Result<(), Failure> {
    if name.len() > NAME_BYTES_MAX {
        return Err(Failure::err(format!("Client names cannot be longer than {NAME_BYTES_MAX} bytes.")));
    }
    match name.iter().all(u8::is_ascii_graphic) {
        true => Ok(()),
        false => Err(Failure::err("Client names cannot contain spaces, newlines or special characters.")),
    }
}
