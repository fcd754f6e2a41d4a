//! The files of a viewer as `tower_http` wants them: read by a [`LocalStore`], which follows no link out of their directory.

use std::fs::Metadata;
use std::future::Future;
use std::io::{self, ErrorKind, SeekFrom};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncSeek, ReadBuf};
use tower_http::services::fs::{Backend, File};

use crate::store::{Key, LocalStore, StoreError};

/// The directory.
#[derive(Debug, Clone)]
pub(super) struct Files(pub(super) LocalStore);

type Answer<T> = Pin<Box<dyn Future<Output = io::Result<T>> + Send>>;

impl Backend for Files {
    type File = Opened;
    type Metadata = Metadata;
    type OpenFuture = Answer<Opened>;
    type MetadataFuture = Answer<Metadata>;

    fn open(&self, path: PathBuf) -> Self::OpenFuture {
        let files = self.0.clone();
        Box::pin(async move { found(files.file(&key(&path)?).await).map(|file| Opened(file.into())) })
    }

    fn metadata(&self, path: PathBuf) -> Self::MetadataFuture {
        let files = self.0.clone();
        Box::pin(async move { found(files.metadata(&key(&path)?).await) })
    }
}

fn key(path: &Path) -> io::Result<Key> {
    // It begins with `.`; a key has no other such segment.
    let segments: Option<Vec<&str>> =
        path.strip_prefix(".").unwrap_or(path).iter().map(|segment| segment.to_str()).collect();
    let key = segments.and_then(|segments| Key::from_segments(segments).ok());
    key.ok_or_else(|| ErrorKind::NotFound.into())
}

fn found<T>(answer: Result<Option<T>, StoreError>) -> io::Result<T> {
    match answer {
        Ok(Some(found)) => Ok(found),
        Ok(None) | Err(StoreError::NotFollowed(_) | StoreError::LeadsNowhere(_)) => Err(ErrorKind::NotFound.into()),
        Err(StoreError::Io { cause, .. }) => Err(io::Error::new(cause.kind(), cause)),
        Err(other) => Err(io::Error::other(other)),
    }
}

/// An open file.
pub(super) struct Opened(tokio::fs::File);

impl AsyncRead for Opened {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncSeek for Opened {
    fn start_seek(mut self: Pin<&mut Self>, position: SeekFrom) -> io::Result<()> {
        Pin::new(&mut self.0).start_seek(position)
    }

    fn poll_complete(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<u64>> {
        Pin::new(&mut self.0).poll_complete(context)
    }
}

impl File for Opened {
    type Metadata = Metadata;
    type MetadataFuture<'a> = Pin<Box<dyn Future<Output = io::Result<Metadata>> + Send + 'a>>;

    fn metadata(&self) -> Self::MetadataFuture<'_> {
        Box::pin(self.0.metadata())
    }
}
