//! The viewer's files as a `tower_http` backend, read by a [`LocalStore`], which follows no link out of their
//! directory.

use std::fs::Metadata;
use std::future::Future;
use std::io::{self, ErrorKind, SeekFrom};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncSeek, ReadBuf};
use tower_http::services::fs::{Backend, File};

use crate::store::{Key, LocalStore, StoreError};

/// The directory of the viewer's files.
#[derive(Debug, Clone)]
pub(super) struct ViewerFiles(pub(super) LocalStore);

type IoFuture<T> = Pin<Box<dyn Future<Output = io::Result<T>> + Send>>;

impl Backend for ViewerFiles {
    type File = ViewerFile;
    type Metadata = Metadata;
    type OpenFuture = IoFuture<ViewerFile>;
    type MetadataFuture = IoFuture<Metadata>;

    fn open(&self, path: PathBuf) -> Self::OpenFuture {
        let files = self.0.clone();
        Box::pin(async move {
            into_io_result(files.open_for_reading(&key_from_path(&path)?).await).map(|file| ViewerFile(file.into()))
        })
    }

    fn metadata(&self, path: PathBuf) -> Self::MetadataFuture {
        let files = self.0.clone();
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

/// An open file of the viewer.
pub(super) struct ViewerFile(tokio::fs::File);

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
    type MetadataFuture<'a> = Pin<Box<dyn Future<Output = io::Result<Metadata>> + Send + 'a>>;

    fn metadata(&self) -> Self::MetadataFuture<'_> {
        Box::pin(self.0.metadata())
    }
}
