//! A collection that is freed a few items at a time.

/// A collection of which nothing is wanted any more.
pub(super) struct Piece {
    items: Box<dyn ExactSizeIterator<Item = ()> + Send>,
    /// Entries of an item.
    entries: u64,
    /// Memory of an item, in bytes, estimated.
    bytes: u64,
}

impl Piece {
    /// A collection whose items count as so many entries, and take about so many bytes.
    pub(super) fn new<I>(items: I, entries: u64, bytes: u64) -> Self
    where
        I: IntoIterator<Item: 'static, IntoIter: ExactSizeIterator + Send + 'static>,
    {
        Self { items: Box::new(items.into_iter().map(drop)), entries, bytes }
    }

    /// Whether nothing is left of it.
    pub(super) fn is_empty(&self) -> bool {
        self.items.len() == 0
    }

    /// Frees an item. Returns how many entries that were; none if there is no item left.
    pub(super) fn free_one(&mut self) -> Option<u64> {
        self.items.next().map(|()| self.entries)
    }

    /// Bytes that are not freed yet, estimated.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.items.len() as u64 * self.bytes
    }
}
