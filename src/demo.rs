//! The demo container, embedded in the binary.

use bytes::Bytes;

use crate::store::{Key, MemoryStore};

#[derive(rust_embed::Embed)]
#[folder = "demo/demo.n5/"]
struct DemoFiles;

/// Modification time of the demo data, in seconds since 1970. It is the same in every build, and so are the entity
/// tags.
const MODIFIED_SECONDS: u64 = 1_795_132_800;

/// Returns the store of the demo container.
pub fn store() -> MemoryStore {
    let objects = DemoFiles::iter().filter_map(|path| {
        let key = Key::from_segments(path.split('/')).ok()?;
        Some((key, Bytes::from(DemoFiles::get(&path)?.data.into_owned())))
    });
    MemoryStore::new(objects, MODIFIED_SECONDS)
}

/// Returns text for a terminal: where things are, and commands that work as printed.
///
/// `url` is the server's URL: `http://host:port/` with a slash at the end, or `unix:` and the path of a socket.
pub fn tour(url: &str) -> String {
    let (curl, base, viewer) = match url.strip_prefix("unix:") {
        Some(socket) => (format!("curl -s --unix-socket '{socket}'"), "http://localhost/", String::new()),
        None => ("curl -s".to_owned(), url, format!("\n  n5://{url}n5/volume/em  the same for Neuroglancer")),
    };
    format!(
        "  {base}                   contents: photo, cell, volume, compressions\n\
         \x20 {base}info/volume/em     a volume and its scales{viewer}\n\
         try\n\
         \x20 {curl} '{base}info/volume/em/s0'\n\
         \x20 {curl} '{base}slice/compressions/gzip?start=0,0,0&size=4,2,1&format=json'\n\
         \x20 {curl} '{base}slice/volume/em/s0?select=:,:,20&format=png' -o em.png"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_object_of_the_demo_has_a_key() {
        assert!(DemoFiles::iter().all(|path| Key::from_segments(path.split('/')).is_ok()));
        assert!(DemoFiles::get("volume/em/s0/attributes.json").is_some());
    }

    #[test]
    fn the_tour_has_three_commands_for_either_kind_of_address() {
        let tcp = tour("http://127.0.0.1:8080/");
        assert_eq!(tcp.matches("curl -s 'http://127.0.0.1:8080/").count(), 3, "{tcp}");
        let unix = tour("unix:/run/n5.sock");
        assert_eq!(unix.matches("curl -s --unix-socket '/run/n5.sock' 'http://localhost/").count(), 3, "{unix}");
    }
}
