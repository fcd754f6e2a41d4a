//! The files of a Neuroglancer that is part of the binary. Only compressed forms are stored: browsers accept one of them, and
//! they are a third as large as the files. The feature `embed-viewer` embeds what `viewer/build` made.

use std::collections::HashMap;
use std::io::Read;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use flate2::read::MultiGzDecoder;

/// The viewer's start page.
pub(crate) const INDEX: &str = "index.html";

#[cfg(feature = "embed-viewer")]
#[derive(rust_embed::Embed)]
#[folder = "viewer/dist/"]
#[include = "*.br"]
#[include = "*.gz"]
struct BuiltFiles;

/// A viewer in memory.
#[derive(Debug, Default)]
pub(crate) struct EmbeddedViewer {
    files: HashMap<String, EmbeddedFile>,
}

/// A file of the viewer in its forms.
#[derive(Debug, Default)]
pub(crate) struct EmbeddedFile {
    pub(crate) brotli: Option<FileForm>,
    pub(crate) gzip: Option<FileForm>,
    plain: OnceLock<Option<FileForm>>,
}

/// The bytes of a file in one content coding.
#[derive(Debug, Clone)]
pub(crate) struct FileForm {
    pub(crate) bytes: Bytes,
    /// Quoted entity tag: a hash of the bytes, because packages may give all files the same time.
    pub(crate) etag: Arc<str>,
}

impl FileForm {
    fn new(bytes: Bytes) -> Self {
        let etag = format!("\"{:016x}\"", xxhash_rust::xxh3::xxh3_64(&bytes)).into();
        Self { bytes, etag }
    }
}

impl EmbeddedViewer {
    /// Returns the viewer that was compiled into this binary, if there is one.
    pub(crate) fn built_in() -> Option<Self> {
        #[cfg(feature = "embed-viewer")]
        {
            let bytes = |name: &str| match BuiltFiles::get(name)?.data {
                std::borrow::Cow::Borrowed(bytes) => Some(Bytes::from_static(bytes)),
                std::borrow::Cow::Owned(bytes) => Some(bytes.into()),
            };
            Self::new(BuiltFiles::iter().filter_map(|name| Some((name.clone().into_owned(), bytes(&name)?))))
        }
        #[cfg(not(feature = "embed-viewer"))]
        None
    }

    /// Returns the viewer with these files: the path and the bytes of each compressed file, ending in `.br` or `.gz`.
    /// Returns `None` if there is no start page that can be decompressed.
    pub(crate) fn new(files: impl IntoIterator<Item = (String, Bytes)>) -> Option<Self> {
        let mut viewer = Self::default();
        for (name, bytes) in files {
            let form = Some(FileForm::new(bytes));
            if let Some(name) = name.strip_suffix(".br") {
                viewer.files.entry(name.to_owned()).or_default().brotli = form;
            } else if let Some(name) = name.strip_suffix(".gz") {
                viewer.files.entry(name.to_owned()).or_default().gzip = form;
            }
        }
        viewer.find(INDEX)?.plain()?;
        Some(viewer)
    }

    /// Returns the file at `path`.
    pub(crate) fn find(&self, path: &str) -> Option<&EmbeddedFile> {
        self.files.get(path)
    }
}

impl EmbeddedFile {
    /// Returns the file without compression. It is decompressed at the first call, and kept: all files together have a few
    /// megabytes. Returns `None` if there is no intact gzip form.
    pub(crate) fn plain(&self) -> Option<&FileForm> {
        let decompress = || {
            let mut bytes = Vec::new();
            MultiGzDecoder::new(&self.gzip.as_ref()?.bytes[..]).read_to_end(&mut bytes).ok()?;
            Some(FileForm::new(bytes.into()))
        };
        self.plain.get_or_init(decompress).as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gzip(text: &str) -> Bytes {
        let mut bytes = Vec::new();
        let mut encoder = flate2::read::GzEncoder::new(text.as_bytes(), flate2::Compression::fast());
        encoder.read_to_end(&mut bytes).unwrap();
        bytes.into()
    }

    #[test]
    fn a_viewer_needs_a_start_page_that_is_intact() {
        assert!(EmbeddedViewer::new([]).is_none());
        assert!(EmbeddedViewer::new([("other.html.gz".to_owned(), gzip("x"))]).is_none());
        assert!(EmbeddedViewer::new([("index.html.gz".to_owned(), Bytes::from_static(b"not gzip"))]).is_none());
        let viewer = EmbeddedViewer::new([("index.html.gz".to_owned(), gzip("x"))]).unwrap();
        assert_eq!(viewer.find(INDEX).unwrap().plain().unwrap().bytes, "x");
    }

    #[test]
    fn every_form_has_an_entity_tag_of_its_own() {
        let files = [("index.html.gz".to_owned(), gzip("x")), ("index.html.br".to_owned(), Bytes::from_static(b"br"))];
        let viewer = EmbeddedViewer::new(files).unwrap();
        let file = viewer.find(INDEX).unwrap();
        let tags = [file.plain(), file.gzip.as_ref(), file.brotli.as_ref()].map(|form| &form.unwrap().etag);
        assert!(tags[0] != tags[1] && tags[1] != tags[2] && tags[0] != tags[2], "{tags:?}");
    }

    /// Fails if `viewer/build` makes files whose type the server does not know, or no compressed forms.
    #[cfg(feature = "embed-viewer")]
    #[test]
    fn every_file_of_the_built_viewer_has_both_compressed_forms() {
        let viewer = EmbeddedViewer::built_in().unwrap();
        assert!(viewer.files.len() > 5);
        for (name, file) in &viewer.files {
            assert!(file.brotli.is_some() && file.plain().is_some(), "{name}");
        }
    }
}
