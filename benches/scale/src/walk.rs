//! Users that walk through volumes, and the blocks that they request.

use std::ops::Range;

use crate::random::{Random, Zipf, hash};

/// Blocks along each axis of a volume at full resolution: 10^12 blocks in total.
const BLOCKS_PER_AXIS: u64 = 10_000;

/// Resolution levels of a volume. Each has half the blocks of the previous one along every axis.
const LEVELS: u64 = 7;

/// Planes of voxels in a block.
const PLANES_PER_BLOCK: u64 = 128;

/// Blocks that a user sees: columns and rows of one plane.
const VIEW: (u64, u64) = (8, 6);

/// Number of volumes. Their popularity follows Zipf's law.
const VOLUMES: u64 = 24;

/// Number of places in each volume that users look at. Their popularity follows Zipf's law, too.
const PLACES: u64 = 32;

/// Level at which a user begins to look at a place.
const OVERVIEW: u64 = 3;

/// A block of a volume: volume, level and position in one number.
pub(crate) type BlockKey = u64;

fn block_key(volume: u64, level: u64, x: u64, y: u64, z: u64) -> BlockKey {
    volume << 52 | level << 48 | x << 32 | y << 16 | z
}

/// Returns the size of a block as stored: 16 to 112 KiB, 64 KiB on average.
pub(crate) fn block_bytes(block: BlockKey) -> u64 {
    (16 << 10) + hash(block ^ 0x5eed) % (96 << 10)
}

/// A request for one block as stored, or for one slice of many blocks.
pub(crate) struct Request<'a> {
    /// Hash of the path and the query.
    pub(crate) url: u64,
    pub(crate) blocks: &'a [BlockKey],
}

/// The visible part of one plane of a volume.
#[derive(Clone, Copy, PartialEq)]
struct Viewport {
    volume: u64,
    level: u64,
    /// Position of the first block.
    x: u64,
    y: u64,
    /// Plane of voxels.
    plane: u64,
}

impl Viewport {
    fn z(&self) -> u64 {
        self.plane / PLANES_PER_BLOCK
    }

    fn columns(&self) -> Range<u64> {
        self.x..self.x + VIEW.0
    }

    fn rows(&self) -> Range<u64> {
        self.y..self.y + VIEW.1
    }

    /// Returns true if a block of the same volume and level is visible.
    fn contains(&self, x: u64, y: u64, z: u64) -> bool {
        z == self.z() && self.columns().contains(&x) && self.rows().contains(&y)
    }

    /// Moves the viewport into the volume.
    fn clamped(self) -> Self {
        let blocks = BLOCKS_PER_AXIS >> self.level;
        Self {
            x: self.x.min(blocks - VIEW.0),
            y: self.y.min(blocks - VIEW.1),
            plane: self.plane.min(blocks * PLANES_PER_BLOCK - 1),
            ..self
        }
    }
}

/// Kind of request that the users of a walk send.
#[derive(Clone, Copy)]
pub(crate) enum Requests {
    Blocks,
    Slices,
    /// Every second user requests slices, the others blocks.
    Both,
}

impl Requests {
    fn includes_slices(self, user: usize) -> bool {
        match self {
            Self::Blocks => false,
            Self::Slices => true,
            Self::Both => user % 2 == 1,
        }
    }
}

/// A user, who either requests stored blocks that are not on the screen yet, or a slice at every step.
struct User {
    requests_slices: bool,
    viewport: Viewport,
    /// Direction of the walk through the planes.
    goes_down: bool,
}

/// The walk of all users, one step of a user after the other.
pub(crate) struct Walk {
    random: Random,
    volumes: Zipf,
    places: Zipf,
    users: Vec<User>,
    blocks: Vec<BlockKey>,
}

impl Walk {
    /// Returns users at their first places.
    pub(crate) fn new(users: usize, requests: Requests, seed: u64) -> Self {
        let (mut random, volumes, places) = (Random::new(seed), Zipf::new(VOLUMES), Zipf::new(PLACES));
        let users = (0..users).map(|user| {
            let volume = volumes.choose(&mut random);
            let viewport = jump(&mut random, volume, &places);
            User { requests_slices: requests.includes_slices(user), viewport, goes_down: user % 4 < 2 }
        });
        let users = users.collect();
        Self { random, volumes, places, users, blocks: Vec::new() }
    }

    /// Moves a user and passes the requests of the step to `send`.
    pub(crate) fn step(&mut self, user: usize, mut send: impl FnMut(&Request)) {
        let count = self.users.len();
        let user = &mut self.users[user % count];
        let before = user.viewport;
        user.viewport = next_viewport(user, &mut self.random, &self.volumes, &self.places).clamped();
        let view @ Viewport { volume, level, x, y, plane } = user.viewport;
        let shows_same_level = (before.volume, before.level) == (volume, level);
        self.blocks.clear();
        for row in view.rows() {
            for column in view.columns() {
                if user.requests_slices || !shows_same_level || !before.contains(column, row, view.z()) {
                    self.blocks.push(block_key(volume, level, column, row, view.z()));
                }
            }
        }
        if user.requests_slices {
            send(&Request { url: hash(hash(block_key(volume, level, x, y, 0)) ^ plane), blocks: &self.blocks });
        } else {
            for block in &self.blocks {
                send(&Request { url: hash(*block), blocks: std::slice::from_ref(block) });
            }
        }
    }
}

/// Returns an overview of a place of interest in a volume.
fn jump(random: &mut Random, volume: u64, places: &Zipf) -> Viewport {
    let place = hash(volume << 32 | places.choose(random));
    let blocks = BLOCKS_PER_AXIS >> OVERVIEW;
    // Users centre the place by hand.
    let mut near = |at: u64| at % blocks + random.below(3);
    let (x, y) = (near(place), near(place >> 16));
    let plane = (place >> 32) % blocks * PLANES_PER_BLOCK;
    Viewport { volume, level: OVERVIEW, x, y, plane }.clamped()
}

/// Returns the next viewport: half of the steps pan by a block, a third go on by four planes, others zoom or jump.
fn next_viewport(user: &mut User, random: &mut Random, volumes: &Zipf, places: &Zipf) -> Viewport {
    let mut view = user.viewport;
    match random.below(100) {
        0..50 => match random.below(4) {
            0 => view.x += 1,
            1 => view.x = view.x.saturating_sub(1),
            2 => view.y += 1,
            _ => view.y = view.y.saturating_sub(1),
        },
        50..85 => {
            user.goes_down ^= random.below(20) == 0;
            view.plane = if user.goes_down { view.plane + 4 } else { view.plane.saturating_sub(4) };
        }
        // The centre of the view stays where it is.
        85..92 if view.level > 0 => {
            view.level -= 1;
            view.x = 2 * view.x + VIEW.0 / 2;
            view.y = 2 * view.y + VIEW.1 / 2;
            view.plane *= 2;
        }
        92..97 if view.level < LEVELS - 1 => {
            view.level += 1;
            view.x = (view.x / 2).saturating_sub(VIEW.0 / 4);
            view.y = (view.y / 2).saturating_sub(VIEW.1 / 4);
            view.plane /= 2;
        }
        99 => {
            let volume = volumes.choose(random);
            view = jump(random, volume, places);
        }
        _ => view = jump(random, view.volume, places),
    }
    view
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Returns the blocks and the URL of every request of a walk.
    fn requests(users: usize, steps: usize, seed: u64) -> Vec<(u64, Vec<BlockKey>)> {
        let (mut walk, mut found) = (Walk::new(users, Requests::Both, seed), Vec::new());
        for step in 0..steps {
            walk.step(step, |request| found.push((request.url, request.blocks.to_vec())));
        }
        found
    }

    #[test]
    fn a_walk_depends_on_its_seed_only() {
        assert_eq!(requests(6, 500, 1), requests(6, 500, 1));
        assert_ne!(requests(6, 500, 1), requests(6, 500, 2));
    }

    #[test]
    fn every_block_is_in_its_volume_and_no_viewer_of_blocks_requests_what_it_sees() {
        let mut walk = Walk::new(10, Requests::Both, 3);
        let mut levels = HashSet::new();
        for step in 0..20_000 {
            let mut seen = HashSet::new();
            let requests_slices = walk.users[step % 10].requests_slices;
            walk.step(step, |request| {
                assert_eq!(request.blocks.len(), if requests_slices { 48 } else { 1 });
                for block in request.blocks {
                    let (volume, level) = (block >> 52, block >> 48 & 15);
                    let position = [block >> 32 & 0xffff, block >> 16 & 0xffff, block & 0xffff];
                    assert!(volume < VOLUMES && level < LEVELS);
                    assert!(position.iter().all(|at| *at < BLOCKS_PER_AXIS >> level), "{position:?} at {level}");
                    assert!(seen.insert(*block), "a step requests a block twice");
                    assert!((16 << 10..112 << 10).contains(&block_bytes(*block)));
                    levels.insert(level);
                }
            });
        }
        assert_eq!(levels.len() as u64, LEVELS);
    }

    #[test]
    fn the_planes_of_a_block_have_urls_of_their_own() {
        let slices: Vec<_> = requests(2, 4000, 5).into_iter().filter(|request| request.1.len() > 1).collect();
        let urls: HashSet<_> = slices.iter().map(|request| request.0).collect();
        let planes_of_blocks: HashSet<_> = slices.iter().map(|request| &request.1).collect();
        assert!(urls.len() > planes_of_blocks.len() * 5 / 4, "{} of {}", urls.len(), planes_of_blocks.len());
    }
}
