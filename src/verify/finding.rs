//! What can be found: every kind with its name, how bad it is and what to do.

use serde::{Deserialize, Serialize};

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Worth knowing.
    Note,
    /// The data are there, but some program cannot read them.
    Warning,
    /// Data are lost, wrong, or could not be verified.
    Error,
}

impl Severity {
    /// As reports have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// What was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the table says what each is")]
pub enum Kind {
    BrokenAttributes,
    UnusableAttributes,
    OversizedAttributes,
    UnreadableFile,
    UnreadableDirectory,
    UnknownCompression,
    UnknownDataType,
    EmptyBlock,
    TruncatedBlock,
    CorruptBlock,
    WrongLength,
    TrailingBytes,
    OversizedBlock,
    WrongRank,
    UnknownMode,
    UndecodableBlock,
    DirectoryAtBlock,
    UnverifiedBlock,
    MissingRange,
    ChangedSince,
    SmallBlock,
    VarlengthBlock,
    OutsideGrid,
    MisplacedFile,
    RefusedByClient,
    InconsistentLevel,
    LinkLoop,
    UnlistedName,
    MissingBlocks,
    StrayFile,
    TemporaryFile,
    UnusualAttributes,
}

/// What is said of a [`Kind`].
#[derive(Debug)]
pub struct Row {
    /// Which.
    pub kind: Kind,
    /// Its name in reports, which never changes.
    pub name: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// What to do.
    pub advice: &'static str,
}

const fn row(kind: Kind, name: &'static str, severity: Severity, advice: &'static str) -> Row {
    Row { kind, name, severity, advice }
}

const RESTORE: &str = "restore the block from a copy, or delete it: then it reads as zeros";

/// Every kind, the worst first.
#[rustfmt::skip]
pub const KINDS: &[Row] = &[
    row(Kind::BrokenAttributes, "broken-attributes", Severity::Error, "restore attributes.json from a copy, or mend its JSON"),
    row(Kind::UnusableAttributes, "unusable-attributes", Severity::Error, "mend the member named: without it no program finds a dataset here"),
    row(Kind::OversizedAttributes, "oversized-attributes", Severity::Error, "shorten attributes.json, or raise limits.attributes where it is below 16MiB"),
    row(Kind::UnreadableFile, "unreadable-file", Severity::Error, "look at the file's permissions and at the disk (dmesg, SMART), then verify again"),
    row(Kind::UnreadableDirectory, "unreadable-directory", Severity::Error, "look at the directory's permissions and at the disk, then verify again: nothing below it was verified"),
    row(Kind::UnknownCompression, "unknown-compression", Severity::Error, "read the dataset with the program that wrote it: its blocks were not verified"),
    row(Kind::UnknownDataType, "unknown-data-type", Severity::Error, "read the dataset with the program that wrote it: its blocks were not verified"),
    row(Kind::EmptyBlock, "empty-block", Severity::Error, RESTORE),
    row(Kind::TruncatedBlock, "truncated-block", Severity::Error, RESTORE),
    row(Kind::CorruptBlock, "corrupt-block", Severity::Error, RESTORE),
    row(Kind::WrongLength, "wrong-length", Severity::Error, RESTORE),
    row(Kind::TrailingBytes, "trailing-bytes", Severity::Error, "restore the block from a copy, or write it anew: it may be two blocks written over each other"),
    row(Kind::OversizedBlock, "oversized-block", Severity::Error, "see whether blockSize was changed after the block was written; write one of them anew"),
    row(Kind::WrongRank, "wrong-rank", Severity::Error, "see whether the block belongs to another dataset; restore it from a copy"),
    row(Kind::UnknownMode, "unknown-mode", Severity::Error, "see whether the file is a block at all; restore it from a copy"),
    row(Kind::UndecodableBlock, "undecodable-block", Severity::Error, "read it with N5 for Java, and write it as an ordinary block: no other program decodes it, and it was not verified"),
    row(Kind::DirectoryAtBlock, "directory-at-block", Severity::Error, "move the directory away: where it stands the dataset reads as zeros"),
    row(Kind::UnverifiedBlock, "unverified-block", Severity::Error, "verify again with more memory: --set limits.decode_budget=SIZE"),
    row(Kind::MissingRange, "missing-range", Severity::Error, "write the blocks anew, or verify without --missing where holes are meant to be zeros"),
    row(Kind::ChangedSince, "changed-since", Severity::Error, "verify the dataset again from its beginning: n5-server verify ROOT DATASET"),
    row(Kind::SmallBlock, "small-block", Severity::Warning, "write the block anew in full size: the rest reads as zeros here, and is refused elsewhere"),
    row(Kind::VarlengthBlock, "varlength-block", Severity::Warning, "write the block anew as an ordinary one: Neuroglancer, TensorStore and z5 refuse mode 1"),
    row(Kind::OutsideGrid, "outside-grid", Severity::Warning, "see whether dimensions shrank or are wrong; if not, the file can be deleted: nobody reads it"),
    row(Kind::MisplacedFile, "misplaced-file", Severity::Warning, "see whether the file belongs to another dataset: no block has its name, and blocks cannot be written below it"),
    row(Kind::RefusedByClient, "refused-by-client", Severity::Warning, "serve it to that program as /as/gzip, /zarr2, /zarr3 or /precomputed, or mend the attributes"),
    row(Kind::InconsistentLevel, "inconsistent-level", Severity::Warning, "mend the pyramid's attributes, or make the level anew"),
    row(Kind::LinkLoop, "link-loop", Severity::Warning, "remove the symbolic link: what is below it was verified where it is"),
    row(Kind::UnlistedName, "unlisted-name", Severity::Warning, "rename it, or see where the link leads: it is neither listed, served nor verified"),
    row(Kind::MissingBlocks, "missing-blocks", Severity::Note, "nothing, where holes are meant to be zeros; --missing lists them"),
    row(Kind::StrayFile, "stray-file", Severity::Note, "nothing: it is neither served nor verified"),
    row(Kind::TemporaryFile, "temporary-file", Severity::Note, "see whether a writer still runs; if not, it can be deleted"),
    row(Kind::UnusualAttributes, "unusual-attributes", Severity::Note, "nothing, as long as the programs in use read it"),
];

impl Kind {
    /// What is said of it.
    pub fn row(self) -> &'static Row {
        static UNTOLD: Row = row(Kind::StrayFile, "untold", Severity::Error, "");
        KINDS.iter().find(|row| row.kind == self).unwrap_or(&UNTOLD)
    }
}

/// One thing that is wrong or worth knowing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// Name of its kind.
    pub kind: &'static str,
    /// Of what: the key of a file or directory, `""` for the container's root.
    pub key: String,
    /// Key of the dataset that it is in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dataset: Option<String>,
    /// Position of a block in the grid of that dataset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub position: Option<Vec<u64>>,
    /// First and last position, inclusive, of a box of blocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub range: Option<[Vec<u64>; 2]>,
    /// The program that refuses it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client: Option<&'static str>,
    /// What is the matter, in words for people, which may change.
    pub message: String,
    /// What to do.
    pub advice: String,
}

impl Finding {
    /// A finding about what is at `key`.
    pub fn new(kind: Kind, key: impl Into<String>, message: impl Into<String>) -> Self {
        let Row { name, severity, advice, .. } = kind.row();
        Self {
            severity: *severity,
            kind: name,
            key: key.into(),
            dataset: None,
            position: None,
            range: None,
            client: None,
            message: message.into(),
            advice: (*advice).to_owned(),
        }
    }

    /// The same about a part of that dataset.
    #[must_use]
    pub fn of(self, dataset: impl Into<String>) -> Self {
        Self { dataset: Some(dataset.into()), ..self }
    }

    /// The same about that block.
    #[must_use]
    pub fn at(self, position: &[u64]) -> Self {
        Self { position: Some(position.to_vec()), ..self }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_of_kinds_never_change() {
        let names: Vec<&str> = KINDS.iter().map(|row| row.name).collect();
        // Whoever reads reports knows these: a name may be added, and none be changed or taken away.
        let known = [
            "broken-attributes",
            "unusable-attributes",
            "oversized-attributes",
            "unreadable-file",
            "unreadable-directory",
            "unknown-compression",
            "unknown-data-type",
            "empty-block",
            "truncated-block",
            "corrupt-block",
            "wrong-length",
            "trailing-bytes",
            "oversized-block",
            "wrong-rank",
            "unknown-mode",
            "undecodable-block",
            "directory-at-block",
            "unverified-block",
            "missing-range",
            "changed-since",
            "small-block",
            "varlength-block",
            "outside-grid",
            "misplaced-file",
            "refused-by-client",
            "inconsistent-level",
            "link-loop",
            "unlisted-name",
            "missing-blocks",
            "stray-file",
            "temporary-file",
            "unusual-attributes",
        ];
        assert_eq!(names, known);
    }

    #[test]
    fn every_kind_has_one_row_and_one_name() {
        let names: BTreeSet<&str> = KINDS.iter().map(|row| row.name).collect();
        assert_eq!(names.len(), KINDS.len());
        for row in KINDS {
            assert_eq!(row.kind.row().name, row.name);
            assert!(!row.advice.is_empty() && row.name.chars().all(|c| c.is_ascii_lowercase() || c == '-'));
        }
        // The last kind of the enum tells how many there are.
        assert_eq!(Kind::UnusualAttributes as usize + 1, KINDS.len());
    }
}
