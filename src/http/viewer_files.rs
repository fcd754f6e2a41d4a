//! The files of a built Neuroglancer: those in the binary, or those of a directory. A [`LocalStore`] reads the latter, and
//! follows no link out of their directory.

use std::fs::Metadata;
use std::io::{self, ErrorKind, SeekFrom};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, Response};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncSeek, ReadBuf};
use tower_http::services::fs::{Backend, DefaultServeDirFallback, File, ServeDir};

use crate::http::embedded_viewer::{EmbeddedViewer, INDEX};
use crate::store::{Key, LocalStore, StoreError, SymlinkPolicy};

/// Bytes of a file that are read at a time.
const READ_BUFFER_BYTES: usize = 16 << 10;
/// Maximum wait for the disk when a file is looked up.
const STORE_TIMEOUT: Duration = Duration::from_secs(30);

/// Value of `server.viewer` that stands for the viewer that was installed with the program.
const AUTO: &str = "auto";
/// Directories that may hold the viewer, relative to that of the executable: in an unpacked archive, and below a prefix
/// such as `/usr/local`.
const BESIDE_EXECUTABLE: [&str; 2] = ["viewer", "../share/n5-server/viewer"];

/// A built Neuroglancer.
#[derive(Debug, Clone)]
pub struct Viewer(pub(crate) ViewerSource);

/// Place of the viewer's files.
#[derive(Debug, Clone)]
pub(crate) enum ViewerSource {
    Embedded(Arc<EmbeddedViewer>),
    Directory(ViewerDirectory),
}

/// A directory with the viewer's files.
#[derive(Debug, Clone)]
pub(crate) struct ViewerDirectory {
    path: PathBuf,
    files: ServeDir<DefaultServeDirFallback, LocalStore>,
}

impl Viewer {
    /// Opens the viewer that `setting`, the value of `server.viewer`, names: `auto` for the one in this binary or else
    /// beside the executable, or a path that may be relative to the working directory. Returns `None` if `setting` is
    /// empty or there is no `index.html`.
    ///
    /// Symbolic links in the path are resolved now, and links out of the directory are not followed. Compressed copies of
    /// a file may lie beside it, with the endings `.br` and `.gz`.
    ///
    /// Blocks the thread on disk I/O.
    ///
    /// # Errors
    /// Returns an error if the directory cannot be examined.
    pub fn open(setting: &Path) -> io::Result<Option<Self>> {
        if setting != Path::new(AUTO) {
            return Self::open_directory(setting);
        }
        let embedded = EmbeddedViewer::built_in().map(|files| Self(ViewerSource::Embedded(Arc::new(files))));
        if embedded.is_some() {
            return Ok(embedded);
        }
        // Without the path of the executable, there is nothing beside it.
        std::env::current_exe().map_or(Ok(None), |executable| Self::open_beside(&executable))
    }

    fn open_beside(executable: &Path) -> io::Result<Option<Self>> {
        let Some(directory) = executable.parent() else { return Ok(None) };
        for relative in BESIDE_EXECUTABLE {
            let viewer = Self::open_directory(&directory.join(relative))?;
            if viewer.is_some() {
                return Ok(viewer);
            }
        }
        Ok(None)
    }

    fn open_directory(directory: &Path) -> io::Result<Option<Self>> {
        if directory.as_os_str().is_empty() {
            return Ok(None);
        }
        let store = match LocalStore::open(directory, SymlinkPolicy::Inside, STORE_TIMEOUT) {
            Ok(store) => store,
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => return Ok(None),
            Err(error) => return Err(error),
        };
        let index = Key::root().child(INDEX).map_err(io::Error::other)?;
        if !store.has_file_blocking(&index)? {
            return Ok(None);
        }
        let files = ServeDir::with_backend("", store)
            .append_index_html_on_directories(false)
            // Each response holds a few such buffers: one for the file, and those on the way to the client.
            .with_buf_chunk_size(READ_BUFFER_BYTES)
            .ignore_multi_range_requests(true)
            .precompressed_br()
            .precompressed_gzip();
        Ok(Some(Self(ViewerSource::Directory(ViewerDirectory { path: directory.to_owned(), files }))))
    }

    /// Returns a viewer in memory. `files` has the path and the bytes of each compressed file, ending in `.br` or `.gz`.
    /// Returns `None` if there is no `index.html`.
    pub fn embedded(files: impl IntoIterator<Item = (String, Bytes)>) -> Option<Self> {
        EmbeddedViewer::new(files).map(|files| Self(ViewerSource::Embedded(Arc::new(files))))
    }

    /// Returns true if `setting`, the value of `server.viewer`, names a directory.
    pub fn is_directory(setting: &Path) -> bool {
        !setting.as_os_str().is_empty() && setting != Path::new(AUTO)
    }

    /// Returns the directory of the viewer's files, or a note that they are in the binary.
    pub fn place(&self) -> String {
        match &self.0 {
            ViewerSource::Embedded(_) => "in the binary".to_owned(),
            ViewerSource::Directory(directory) => directory.path.display().to_string(),
        }
    }
}

impl ViewerDirectory {
    /// Returns the path of the directory.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Answers a request for a file. The path of the request is relative to the directory. Evaluates preconditions,
    /// ranges and `Accept-Encoding`.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read.
    pub(crate) async fn call(&self, request: Request<Body>) -> io::Result<Response<Body>> {
        Ok(self.files.clone().try_call(request).await?.map(Body::new))
    }
}

impl Backend for LocalStore {
    type File = ViewerFile;
    type Metadata = Metadata;
    type OpenFuture = BoxFuture<'static, io::Result<ViewerFile>>;
    type MetadataFuture = BoxFuture<'static, io::Result<Metadata>>;

    fn open(&self, path: PathBuf) -> Self::OpenFuture {
        let files = self.clone();
        Box::pin(async move {
            into_io_result(files.open_for_reading(&key_from_path(&path)?).await).map(|file| ViewerFile(file.into()))
        })
    }

    fn metadata(&self, path: PathBuf) -> Self::MetadataFuture {
        let files = self.clone();
        Box::pin(async move { into_io_result(files.metadata(&key_from_path(&path)?).await) })
    }
}

fn key_from_path(path: &Path) -> io::Result<Key> {
    // The path begins with `.`. A key has no such segment.
    let segments: Option<Vec<&str>> =
        path.strip_prefix(".").unwrap_or(path).iter().map(|segment| segment.to_str()).collect();
    let key = segments.and_then(|segments| Key::from_segments(segments).ok());
    key.ok_or_else(|| ErrorKind::NotFound.into())
}

fn into_io_result<T>(result: Result<Option<T>, StoreError>) -> io::Result<T> {
    match result {
        Ok(Some(value)) => Ok(value),
        Ok(None) | Err(StoreError::LinkNotFollowed(_) | StoreError::DanglingLink(_)) => Err(ErrorKind::NotFound.into()),
        Err(StoreError::Io { cause, .. }) => Err(io::Error::new(cause.kind(), cause)),
        Err(other) => Err(io::Error::other(other)),
    }
}

/// An open file of the viewer, as `tower_http` reads it.
pub struct ViewerFile(tokio::fs::File);

impl AsyncRead for ViewerFile {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncSeek for ViewerFile {
    fn start_seek(mut self: Pin<&mut Self>, position: SeekFrom) -> io::Result<()> {
        Pin::new(&mut self.0).start_seek(position)
    }

    fn poll_complete(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<u64>> {
        Pin::new(&mut self.0).poll_complete(context)
    }
}

impl File for ViewerFile {
    type Metadata = Metadata;
    type MetadataFuture<'a> = BoxFuture<'a, io::Result<Metadata>>;

    fn metadata(&self) -> Self::MetadataFuture<'_> {
        Box::pin(self.0.metadata())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_without_an_index_is_not_a_viewer() {
        let directory = tempfile::tempdir().unwrap();
        assert!(Viewer::open(directory.path()).unwrap().is_none());
        std::fs::create_dir(directory.path().join(INDEX)).unwrap();
        assert!(Viewer::open(directory.path()).unwrap().is_none());
        assert!(Viewer::open(Path::new("")).unwrap().is_none());
        assert!(Viewer::open(Path::new(&"x".repeat(300))).is_err());
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the test makes a viewer's directory")]
    fn a_viewer_beside_the_executable_is_found() {
        for place in ["bin/viewer", "share/n5-server/viewer"] {
            let prefix = tempfile::tempdir().unwrap();
            let executable = prefix.path().join("bin/n5-server");
            std::fs::create_dir(prefix.path().join("bin")).unwrap();
            assert!(Viewer::open_beside(&executable).unwrap().is_none());
            std::fs::create_dir_all(prefix.path().join(place)).unwrap();
            std::fs::write(prefix.path().join(place).join(INDEX), "").unwrap();
            assert!(Viewer::open_beside(&executable).unwrap().is_some(), "{place}");
        }
    }
}
