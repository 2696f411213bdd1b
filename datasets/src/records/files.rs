//! A bounded number of open files, which threads share.
//!
//! Reads name their positions, so a file has no state that threads could disturb. The file that was not
//! used for the longest time is closed first. A thread that still reads from it keeps it open.

use std::{fs::File, path::Path, sync::Arc};

use parking_lot::Mutex;

use crate::error::{Error, Result};

/// Open files by their numbers, the one that was used last at the end.
#[derive(Debug)]
pub(crate) struct OpenFiles {
    most: usize,
    open: Mutex<Vec<(usize, Arc<File>)>>,
}

impl OpenFiles {
    /// At most `most` open files, and at least one.
    pub(crate) fn new(most: usize) -> Self {
        Self { most: most.max(1), open: Mutex::default() }
    }

    /// The file with this number, which is at `path`.
    pub(crate) fn get(&self, number: usize, path: &Path) -> Result<Arc<File>> {
        {
            let mut open = self.open.lock();
            if let Some(place) = open.iter().position(|(known, _)| *known == number) {
                let found = open.remove(place);
                let file = Arc::clone(&found.1);
                open.push(found);
                return Ok(file);
            }
        }
        let file = Arc::new(File::open(path).map_err(Error::io("open", path))?);
        let mut open = self.open.lock();
        if open.len() >= self.most {
            open.remove(0);
        }
        open.push((number, Arc::clone(&file)));
        Ok(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_not_used_for_the_longest_time_is_closed() {
        let dir = tempfile::tempdir().unwrap();
        let path = |number: usize| dir.path().join(number.to_string());
        (0..4).for_each(|number| std::fs::write(path(number), "x").unwrap());
        let files = OpenFiles::new(2);
        let open = || files.open.lock().iter().map(|(number, _)| *number).collect::<Vec<_>>();
        for (number, expected) in
            [(0, &[0][..]), (1, &[0, 1]), (0, &[1, 0]), (2, &[0, 2]), (3, &[2, 3]), (3, &[2, 3])]
        {
            files.get(number, &path(number)).unwrap();
            assert_eq!(open(), expected);
        }
        assert!(files.get(9, &path(9)).unwrap_err().to_string().contains("9: cannot open"));
        assert_eq!(open(), [2, 3]);
    }
}
