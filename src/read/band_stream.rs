//! Reads of streamed slices, one band after another. Bands become smaller if their client is slow and memory is scarce.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::stream::{self, StreamExt, TryStreamExt};

use super::bands::Bands;
use super::plan::PlannedSlice;
use super::slice_reader::{ReadPermits, SliceReader, cut_slabs};
use crate::cache::{Permit, ReadError, ReadOptions};
use crate::container::Container;
use crate::runtime::cpu_pool::Priority;
use n5_format::{ConvertError, swap_byte_order};

/// Longest wait for a client that counts as fast. A fast client does not hold its memory for long, so its next bands
/// may grow even where there is not enough memory.
const FAST_CLIENT_WAIT: Duration = Duration::from_millis(250);

/// Wait after which a client counts as slow. Its bands become smaller where there is not enough memory.
const SLOW_CLIENT_WAIT: Duration = Duration::from_secs(1);

/// Reads a streamed slice band by band.
pub struct BandStream {
    container: Container,
    options: ReadOptions,
    slice: Arc<PlannedSlice>,
    /// Bands that have not been read yet; `None` if the slice is not streamed.
    bands: Option<Bands>,
    /// Width of the elements, as sent, if their bytes are swapped.
    swapped_width: Option<usize>,
    /// Time that the last band waited for memory, which earlier bands may have held.
    memory_waited: Duration,
    /// Token held by every piece of the stream that has not been sent yet.
    token: Arc<()>,
}

impl BandStream {
    /// Creates a stream of the bands of `slice`. The elements are converted if the slice requires it. Then
    /// their bytes are swapped if `swapped_width`, their width, is given.
    pub fn new(
        container: Container,
        options: ReadOptions,
        mut slice: PlannedSlice,
        swapped_width: Option<usize>,
    ) -> Self {
        let bands = slice.bands.take();
        let slice = Arc::new(slice);
        Self { container, options, slice, bands, swapped_width, memory_waited: Duration::ZERO, token: Arc::default() }
    }

    /// Returns true if all bands have been read.
    pub fn is_exhausted(&self) -> bool {
        self.bands.as_ref().is_none_or(Bands::is_done)
    }

    /// Reads the next band. Returns its pieces in the order in which they are sent; `None` after the last band. Each
    /// piece gives its memory back as soon as it is sent.
    ///
    /// `waited` is the time that the previous band waited until the client had read the band before it; `None` for the
    /// first band.
    ///
    /// # Errors
    /// Returns the errors of [`SliceReader::read_whole`], and [`ReadError::Convert`] if an element cannot be converted.
    pub async fn next(&mut self, waited: Option<Duration>) -> Result<Option<Vec<Bytes>>, ReadError> {
        if let Some(waited) = waited {
            self.adapt_band_size(waited);
        }
        let Some(band) = self.bands.as_mut().and_then(Iterator::next) else { return Ok(None) };
        let slice = &*self.slice;
        let budget = &self.container.resources.slice_budget;
        let is_first = waited.is_none();
        let header_bytes = if is_first { slice.counted_header_bytes } else { 0 };
        let elements_bytes = band.elements().unwrap_or(u64::MAX).saturating_mul(slice.memory_width);
        let max_wait = if is_first { budget.max_wait } else { budget.started_wait() };
        let started = Instant::now();
        let reader = SliceReader { container: &self.container, options: self.options, slice };
        let token = &self.token;
        let take = |bytes| async move { Ok(budget.take_for_stream(bytes, token, max_wait).await?) };
        let ReadPermits { elements, extra: header, loading } =
            reader.reserve(&band, elements_bytes, header_bytes, take).await?;
        self.memory_waited = started.elapsed();
        if slice.is_converted() || header_bytes > 0 {
            budget.trim_pool();
        }
        // The header is sent before the first slab, so the memory of both is given back together.
        let slabs = cut_slabs(slice, &band, elements, Some(header))?;
        // After the first band, the response can no longer be refused.
        let retry_time =
            if is_first { Duration::ZERO } else { self.container.resources.blocks.budget().started_wait() };
        let (slabs, _) = reader.gather(&band, slabs, retry_time, false).await?;
        drop(loading);
        if self.swapped_width.is_none() && !slice.is_converted() {
            return Ok(Some(slabs.into_iter().map(|(data, permit)| budget.own_pooled(data, permit)).collect()));
        }
        self.finish_slabs(slabs).await.map(Some)
    }

    /// Adapts the size of the next band to the client: if there is not enough memory, a slow client gets small bands.
    /// The speed is judged by `waited`, as in [`Self::next`], plus the time that the last band waited for memory.
    fn adapt_band_size(&mut self, waited: Duration) {
        let budget = &self.container.resources.slice_budget;
        let waited = waited.saturating_add(self.memory_waited);
        let Some(bands) = &mut self.bands else { return };
        let free_bytes = budget.free_bytes();
        let is_memory_plentiful = free_bytes > budget.capacity_bytes() / 2;
        if waited < if is_memory_plentiful { SLOW_CLIENT_WAIT } else { FAST_CLIENT_WAIT } {
            bands.grow(free_bytes);
        } else if waited > SLOW_CLIENT_WAIT && !is_memory_plentiful {
            bands.shrink();
        }
        // A band that fits into the free memory does not wait for memory that other clients hold.
        if waited > SLOW_CLIENT_WAIT || Arc::strong_count(&self.token) == 1 {
            bands.cap_next_bytes(free_bytes.saturating_sub(budget.capacity_bytes() - budget.max_stream_bytes()));
        }
    }

    /// Converts the elements of a band, or swaps their bytes, on the CPU pool, in one job per slab, so that other jobs
    /// can run in between.
    async fn finish_slabs(&self, slabs: Vec<(Vec<u8>, Permit)>) -> Result<Vec<Bytes>, ReadError> {
        let cpu = &self.container.resources.cpu;
        let jobs = slabs.into_iter().map(|(data, mut permit)| {
            let slice = Arc::clone(&self.slice);
            let swapped_width = self.swapped_width;
            let finish_slab = move || -> Result<Bytes, ConvertError> {
                let stored_bytes = data.len() as u64;
                let mut bytes = slice.convert(data.into())?;
                if let Some(width) = swapped_width {
                    bytes = swap_byte_order(bytes, width);
                }
                // The unconverted elements have been dropped.
                if slice.is_converted() {
                    drop(permit.split(stored_bytes));
                }
                Ok(permit.own(bytes))
            };
            async move { Ok::<_, ReadError>(cpu.run(Priority::High, self.slice.dataset.id, finish_slab).await??) }
        });
        stream::iter(jobs).buffered(cpu.cores()).try_collect().await
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::{SliceDelivery, SlicePlanner};
    use super::super::tests::{container, container_with_blocks};
    use super::*;
    use crate::store::Key;
    use n5_format::Region;

    #[tokio::test]
    async fn the_size_of_bands_follows_the_speed_of_the_client() {
        let attributes = r#"{"dimensions":[1024,1024,4096],"blockSize":[64,64,64],"dataType":"uint8","compression":{"type":"gzip"}}"#;
        let container = container(1 << 40, 64 << 20, attributes);
        let options = ReadOptions::begin();
        let dataset = container.dataset(options, &Key::parse("v").unwrap()).await.unwrap();
        let region = Region::whole(dataset.attributes.dimensions());
        let slice = SlicePlanner::whole(&container, &dataset).plan(&region).unwrap();
        let mut bands = BandStream::new(container.clone(), options, slice, None);
        let mut next = async |waited, memory_waited| {
            bands.memory_waited = memory_waited;
            let pieces = bands.next(waited).await.unwrap().unwrap();
            pieces.iter().map(|piece| piece.len() as u64).sum::<u64>() >> 20
        };
        let fast_client = Some(Duration::ZERO);
        let slow_client = Some(Duration::from_secs(2));
        next(None, Duration::ZERO).await;
        let mut largest = 0;
        for _ in 0..24 {
            largest = largest.max(next(fast_client, Duration::ZERO).await);
        }
        assert!(largest > 16, "{largest} MiB");
        // Slow clients get large bands, too, while there is plenty of memory.
        assert!(next(slow_client, Duration::ZERO).await > 16);
        let _held = container.resources.slice_budget.take(20 << 20).await.unwrap();
        let _more = container.resources.slice_budget.take(13 << 20).await.unwrap();
        // Limited by the memory that is left of the part for streams.
        let first = next(fast_client, Duration::ZERO).await;
        assert!(first > 8 && first <= 15, "{first} MiB");
        assert!(next(slow_client, Duration::ZERO).await <= 8);
        assert!(next(fast_client, Duration::from_secs(2)).await <= 5);
    }

    #[tokio::test]
    async fn a_started_answer_waits_longer_for_memory() {
        let budget_wait = Duration::from_millis(500);
        let container = container_with_blocks(budget_wait);
        let resources = &container.resources;
        let options = ReadOptions::begin();
        let dataset = container.dataset(options, &Key::parse("v").unwrap()).await.unwrap();
        let delivery = SliceDelivery::streamed(dataset.attributes.data_type());
        let region = Region::whole(dataset.attributes.dimensions());
        let planner = SlicePlanner { container: &container, dataset: &dataset, delivery };
        let stream = || BandStream::new(container.clone(), options, planner.plan(&region).unwrap(), None);
        for budget in [&resources.slice_budget, resources.blocks.budget()] {
            let take_all = async || budget.take_within(budget.capacity_bytes(), Duration::from_secs(60)).await.unwrap();
            let held_permit = take_all().await;
            assert!(stream().next(None).await.is_err());
            drop(held_permit);
            let mut bands = stream();
            drop(bands.next(None).await.unwrap());
            // Longer than the wait of a response that has not started.
            let held_permit = take_all().await;
            let release_task = tokio::spawn(async move {
                tokio::time::sleep(3 * budget_wait).await;
                drop(held_permit);
            });
            assert!(bands.next(Some(Duration::ZERO)).await.unwrap().is_some());
            release_task.await.unwrap();
        }
    }
}
