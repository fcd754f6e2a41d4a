//! Findings and their kinds: the name, severity and advice of each kind.

use serde::{Deserialize, Serialize};

/// Severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// A fact that is worth knowing.
    Note,
    /// The data are there, but some program cannot read them.
    Warning,
    /// Data are lost, wrong, or could not be verified.
    Error,
}

impl Severity {
    /// Returns the name that reports use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// Kind of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the table describes each kind")]
pub enum FindingKind {
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

/// Name, severity and advice of a [`FindingKind`].
#[derive(Debug)]
pub struct FindingDescriptor {
    /// Kind that the other fields describe.
    pub kind: FindingKind,
    /// Name in reports. It never changes.
    pub name: &'static str,
    /// Severity of all findings of this kind.
    pub severity: Severity,
    /// Advice on what to do.
    pub advice: &'static str,
}

const fn descriptor(
    kind: FindingKind,
    name: &'static str,
    severity: Severity,
    advice: &'static str,
) -> FindingDescriptor {
    FindingDescriptor { kind, name, severity, advice }
}

const RESTORE: &str = "restore the block from a copy, or delete it: then it reads as zeros";

/// All kinds, the most severe first.
#[rustfmt::skip]
pub const FINDING_KINDS: &[FindingDescriptor] = &[
    descriptor(FindingKind::BrokenAttributes, "broken-attributes", Severity::Error, "restore attributes.json from a copy, or repair its JSON"),
    descriptor(FindingKind::UnusableAttributes, "unusable-attributes", Severity::Error, "repair the member named: without it no program finds a dataset here"),
    descriptor(FindingKind::OversizedAttributes, "oversized-attributes", Severity::Error, "shorten attributes.json, or raise limits.attributes where it is below 16MiB"),
    descriptor(FindingKind::UnreadableFile, "unreadable-file", Severity::Error, "look at the file's permissions and at the disk (dmesg, SMART), then verify again"),
    descriptor(FindingKind::UnreadableDirectory, "unreadable-directory", Severity::Error, "look at the directory's permissions and at the disk, then verify again: nothing below it was verified"),
    descriptor(FindingKind::UnknownCompression, "unknown-compression", Severity::Error, "correct compression.type if it is misspelled; otherwise read the dataset with the program that wrote it: its blocks were not verified"),
    descriptor(FindingKind::UnknownDataType, "unknown-data-type", Severity::Error, "read the dataset with the program that wrote it: its blocks were not verified"),
    descriptor(FindingKind::EmptyBlock, "empty-block", Severity::Error, RESTORE),
    descriptor(FindingKind::TruncatedBlock, "truncated-block", Severity::Error, RESTORE),
    descriptor(FindingKind::CorruptBlock, "corrupt-block", Severity::Error, RESTORE),
    descriptor(FindingKind::WrongLength, "wrong-length", Severity::Error, RESTORE),
    descriptor(FindingKind::TrailingBytes, "trailing-bytes", Severity::Error, "restore the block from a copy, or write it again: it may be two blocks written over each other"),
    descriptor(FindingKind::OversizedBlock, "oversized-block", Severity::Error, "see whether blockSize was changed after the block was written; write one of them again"),
    descriptor(FindingKind::WrongRank, "wrong-rank", Severity::Error, "see whether the block belongs to another dataset; restore it from a copy"),
    descriptor(FindingKind::UnknownMode, "unknown-mode", Severity::Error, "see whether the file is a block at all; restore it from a copy"),
    descriptor(FindingKind::UndecodableBlock, "undecodable-block", Severity::Error, "read it with N5 for Java, and write it as an ordinary block: no other program decodes it, and it was not verified"),
    descriptor(FindingKind::DirectoryAtBlock, "directory-at-block", Severity::Error, "move the directory away: while it is there, the block reads as zeros"),
    descriptor(FindingKind::UnverifiedBlock, "unverified-block", Severity::Error, "verify again with more memory: --set limits.decode_budget=SIZE"),
    descriptor(FindingKind::MissingRange, "missing-range", Severity::Error, "write the blocks again, or verify without --missing if holes are intended"),
    descriptor(FindingKind::ChangedSince, "changed-since", Severity::Error, "verify the dataset again from its beginning: n5-server verify ROOT DATASET"),
    descriptor(FindingKind::SmallBlock, "small-block", Severity::Warning, "write the block again in full size: the rest reads as zeros here, and is refused elsewhere"),
    descriptor(FindingKind::VarlengthBlock, "varlength-block", Severity::Warning, "write the block again as an ordinary one: Neuroglancer, TensorStore and z5 refuse mode 1"),
    descriptor(FindingKind::OutsideGrid, "outside-grid", Severity::Warning, "check whether dimensions shrank or are wrong; if not, the file can be deleted: no program reads it"),
    descriptor(FindingKind::MisplacedFile, "misplaced-file", Severity::Warning, "see whether the file belongs to another dataset: no block has its name, and blocks cannot be written below it"),
    descriptor(FindingKind::RefusedByClient, "refused-by-client", Severity::Warning, "serve it to that program as /as/gzip, /zarr2, /zarr3 or /precomputed, or repair the attributes"),
    descriptor(FindingKind::InconsistentLevel, "inconsistent-level", Severity::Warning, "repair the pyramid's attributes, or recreate the level"),
    descriptor(FindingKind::LinkLoop, "link-loop", Severity::Warning, "remove the symbolic link: what is below it was verified where it is"),
    descriptor(FindingKind::UnlistedName, "unlisted-name", Severity::Warning, "rename it, or see where the link leads: it is neither listed, served nor verified"),
    descriptor(FindingKind::MissingBlocks, "missing-blocks", Severity::Note, "nothing, if holes are intended; --missing lists them"),
    descriptor(FindingKind::StrayFile, "stray-file", Severity::Note, "nothing: it is neither served nor verified"),
    descriptor(FindingKind::TemporaryFile, "temporary-file", Severity::Note, "see whether a writer still runs; if not, it can be deleted"),
    descriptor(FindingKind::UnusualAttributes, "unusual-attributes", Severity::Note, "nothing, as long as the programs in use read it"),
];

impl FindingKind {
    /// Returns the descriptor of this kind.
    pub fn descriptor(self) -> &'static FindingDescriptor {
        static UNKNOWN_KIND: FindingDescriptor = descriptor(FindingKind::StrayFile, "unknown", Severity::Error, "");
        FINDING_KINDS.iter().find(|row| row.kind == self).unwrap_or(&UNKNOWN_KIND)
    }
}

/// Something in a container that is wrong or worth knowing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Severity of the finding.
    pub severity: Severity,
    /// Name of the finding's kind.
    pub kind: &'static str,
    /// Key of the file or directory that the finding is about, `""` for the container's root.
    pub key: String,
    /// Key of the dataset that contains this file or directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dataset: Option<String>,
    /// Position of the block in the grid of the dataset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub position: Option<Vec<u64>>,
    /// First and last position, inclusive, of a box of blocks in the grid of the dataset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub range: Option<[Vec<u64>; 2]>,
    /// Name of the program that refuses the attributes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client: Option<&'static str>,
    /// Human-readable description. Its wording may change.
    pub message: String,
    /// Advice on what to do.
    pub advice: String,
}

impl Finding {
    /// Creates a finding about the file or directory at `key`.
    pub fn new(kind: FindingKind, key: impl Into<String>, message: impl Into<String>) -> Self {
        let FindingDescriptor { name, severity, advice, .. } = kind.descriptor();
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

    /// Sets the dataset that contains the file or directory.
    #[must_use]
    pub fn in_dataset(self, dataset: impl Into<String>) -> Self {
        Self { dataset: Some(dataset.into()), ..self }
    }

    /// Sets the position of the block.
    #[must_use]
    pub fn at_position(self, position: &[u64]) -> Self {
        Self { position: Some(position.to_vec()), ..self }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_of_kinds_never_change() {
        let names: Vec<&str> = FINDING_KINDS.iter().map(|row| row.name).collect();
        // Programs that read reports depend on these names. Names may be added, but not changed or removed.
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
        let names: BTreeSet<&str> = FINDING_KINDS.iter().map(|row| row.name).collect();
        assert_eq!(names.len(), FINDING_KINDS.len());
        for row in FINDING_KINDS {
            assert_eq!(row.kind.descriptor().name, row.name);
            assert!(!row.advice.is_empty() && row.name.chars().all(|c| c.is_ascii_lowercase() || c == '-'));
        }
        // The discriminant of the last variant gives the number of kinds.
        assert_eq!(FindingKind::UnusualAttributes as usize + 1, FINDING_KINDS.len());
    }
}
