// Rows as a message that is packed and unpacked piece by piece: UCX asks for the next piece when it has a buffer of its
// own to fill, and hands over each piece as it comes, so that the bytes are copied once at either end.
//
//     rows of the table | checksum, 8 bytes
//
// The checksum is taken on the way, as long as the pieces come in order. Nothing but a wire of several lanes would bring
// them in another; then the rows are looked at a second time at the end.

#include "rows.hpp"

#include <atomic>
#include <cstddef>
#include <new>

using rows::Job;
using rows::Table;
using xxh3::kBlockBytes;
using xxh3::kStripeBytes;
using xxh3::Store;

namespace {

constexpr int64_t kChecksumBytes = 8;
constexpr int32_t kOk = 0, kTruncated = -9;  // of UCX

// The way by which a message gets into the wire's buffers, which on one host another core reads: through the caches, or
// past them. Past them is faster, several times, where the two cores share no cache, because it fetches no line from the
// other's before writing it. Otherwise it is slower, at the reader's end. Nothing tells which is the case, and a
// hypervisor moves cores at will. So one piece of a message goes the other way, for comparison with the piece before it.
class Way {
  public:
    bool is_past_caches() const { return is_past_caches_ != (is_trial_ && num_pieces_ == kTrial); }

    void took(uint64_t ticks, int64_t num_bytes) {
        const double pace = static_cast<double>(ticks) / num_bytes;
        if (is_trial_ && num_pieces_ == kTrial) {
            const double past = is_past_caches_ ? last_pace_ : pace, cached = is_past_caches_ ? pace : last_pace_;
            is_past_caches_ = cached > kGain * past;
            latest.store(is_past_caches_, std::memory_order_relaxed);
        }
        last_pace_ = pace;
        ++num_pieces_;
    }

  private:
    static constexpr int64_t kTrial = 2;  // the first piece waits for more than the others do
    static constexpr double kGain = 2;    // from which on the other end's loss is made up for
    static constexpr uint32_t kRest = 8;  // messages between two trials while a trial is the slow way

    // Of the messages of this process.
    inline static std::atomic<bool> latest{false};
    inline static std::atomic<uint32_t> num_messages{0};

    bool is_past_caches_ = latest.load(std::memory_order_relaxed);
    bool is_trial_ = !is_past_caches_ || num_messages.fetch_add(1, std::memory_order_relaxed) % kRest == 0;
    int64_t num_pieces_ = 0;
    double last_pace_ = 0;
};

class Stream {
  public:
    Stream(const Job& job, uint64_t spoil)
        : rows_(job.from), num_runs_(job.num_runs), run_bytes_(job.run_bytes), num_bytes_(num_runs_ * run_bytes_),
          seed_(job.seed), spoil_(spoil), streams_(job.past_caches && rows::fits_streaming_stores(rows_, run_bytes_)),
          digest_(seed_), ahead_(rows_, num_runs_, run_bytes_), blocks_left_((num_bytes_ - 1) / kBlockBytes) {}

    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;

    int64_t size() const { return num_bytes_ + kChecksumBytes; }

    // `max_bytes` is SIZE_MAX for a message that fits into one piece as a whole.
    int64_t pack(int64_t offset, uint8_t* dest, size_t max_bytes) {
        int64_t num_bytes = std::min<uint64_t>(max_bytes, size() - offset);
        // Whole blocks as long as there are some: those that are cut in two are put together at either end.
        if (num_bytes < size() - offset && num_bytes >= kBlockBytes) num_bytes -= num_bytes % kBlockBytes;
        const int64_t of_rows = std::clamp<int64_t>(num_bytes_ - offset, 0, num_bytes);
        move<true>(offset, dest, of_rows);
        if (of_rows < num_bytes) {
            const uint64_t sum = checksum() ^ spoil_;
            uint8_t bytes[kChecksumBytes];
            std::memcpy(bytes, &sum, kChecksumBytes);
            std::memcpy(dest + of_rows, bytes + (offset + of_rows - num_bytes_), num_bytes - of_rows);
        }
        return num_bytes;
    }

    bool unpack(int64_t offset, const uint8_t* src, int64_t num_bytes) {
        if (offset < 0 || num_bytes < 0 || offset > size() - num_bytes) return false;
        const int64_t of_rows = std::clamp<int64_t>(num_bytes_ - offset, 0, num_bytes);
        move<false>(offset, const_cast<uint8_t*>(src), of_rows);
        std::memcpy(sent_sum_ + std::max<int64_t>(offset - num_bytes_, 0), src + of_rows, num_bytes - of_rows);
        num_unpacked_ += num_bytes;
        return true;
    }

    bool is_whole() {
        uint64_t sum;
        std::memcpy(&sum, sent_sum_, kChecksumBytes);
        return num_unpacked_ == size() && sum == checksum();
    }

  private:
    template <bool kPack>
    void move(int64_t offset, uint8_t* wire, int64_t num_bytes) {
        if (num_bytes == 0) return;
        if (offset != offset_) is_in_order_ = false;
        if (!is_in_order_) {
            move_plainly<kPack>(offset, wire, num_bytes);
        } else {
            offset_ += num_bytes;
            if (kPack) {
                pack_rows(offset, wire, num_bytes);
            } else if (streams_) {
                take<false, Store::kStreaming>(wire, num_bytes);
                _mm_sfence();
            } else {
                take<false, Store::kCached>(wire, num_bytes);
            }
        }
    }

    void pack_rows(int64_t offset, uint8_t* wire, int64_t num_bytes) {
        const uint64_t began = __rdtsc();
        if (way_.is_past_caches()) {
            take<true, Store::kNone>(wire, num_bytes);
            move_plainly<true, rows::copy_past_caches>(offset, wire, num_bytes);
            _mm_sfence();
        } else {
            take<true, Store::kCached>(wire, num_bytes);
        }
        way_.took(__rdtsc() - began, num_bytes);
    }

    // The bytes that follow those before. What does not come as a whole block within a row and within this piece is put
    // together in `pending_`, as in rows::copy.
    template <bool kPack, Store kStore>
    void take(uint8_t* wire, int64_t left) {
        while (left > 0) {
            uint8_t* const place = rows_.row(row_) + at_;
            const uint8_t* src = kPack ? place : wire;
            uint8_t* dst = kPack ? wire : place;
            const int64_t here = std::min(left, run_bytes_ - at_);
            int64_t size = kBlockBytes;
            if (num_pending_ == 0 && here >= kBlockBytes && blocks_left_ > 0) {
                if (kStore == Store::kStreaming) ahead_.find_page();
                const uint8_t* ahead = kPack ? ahead_.next() : wire + std::min(left - kBlockBytes, 4 * kBlockBytes);
                digest_.take_block<kStore>(src, dst, ahead);
                if (--blocks_left_ == 0) std::memcpy(buffer_, src + kBlockBytes - kStripeBytes, kStripeBytes);
            } else {
                uint8_t* const pending = buffer_ + kStripeBytes;
                size = std::min(kBlockBytes - num_pending_, here);
                std::memcpy(pending + num_pending_, src, size);
                if (kStore != Store::kNone) std::memcpy(dst, pending + num_pending_, size);
                num_pending_ += size;
                if (num_pending_ == kBlockBytes && blocks_left_ > 0) {
                    if (kStore == Store::kStreaming) ahead_.find_page();
                    digest_.take_block<Store::kNone>(pending, nullptr, kPack ? ahead_.next() : pending);
                    std::memcpy(buffer_, pending + kBlockBytes - kStripeBytes, kStripeBytes);
                    --blocks_left_;
                    num_pending_ = 0;
                }
            }
            wire += size;
            left -= size;
            at_ += size;
            if (at_ == run_bytes_) {
                at_ = 0;
                ++row_;
            }
        }
    }

    template <bool kPack, auto kCopy = std::memcpy>
    void move_plainly(int64_t offset, uint8_t* wire, int64_t left) {
        while (left > 0) {
            const int64_t at = offset % run_bytes_, size = std::min(left, run_bytes_ - at);
            uint8_t* const place = rows_.row(offset / run_bytes_) + at;
            kCopy(kPack ? wire : place, kPack ? place : wire, size);
            wire += size;
            offset += size;
            left -= size;
        }
    }

    uint64_t checksum() {
        if (!is_summed_) {
            is_summed_ = true;
            checksum_ = is_in_order_ && offset_ == num_bytes_
                            ? digest_.finish(buffer_ + kStripeBytes, num_pending_, num_bytes_)
                            : rows::copy<Store::kNone>(Table{}, rows_, num_runs_, run_bytes_, seed_);
        }
        return checksum_;
    }

    const Table rows_;
    const int64_t num_runs_, run_bytes_, num_bytes_;
    const uint64_t seed_, spoil_;
    const bool streams_;
    Way way_;
    xxh3::Digest digest_;
    rows::Ahead ahead_;
    int64_t blocks_left_;
    int64_t offset_ = 0, row_ = 0, at_ = 0, num_pending_ = 0, num_unpacked_ = 0;
    bool is_in_order_ = true, is_summed_ = false;
    uint64_t checksum_ = 0;
    uint8_t sent_sum_[kChecksumBytes] = {};
    uint8_t buffer_[kStripeBytes + kBlockBytes];
};

Stream* as_stream(void* state) { return static_cast<Stream*>(state); }

// What UCX calls for a datatype of our own, in the order of its ucp_generic_dt_ops. A stream is its own state.
struct Operations {
    void* (*start_pack)(void*, const void*, size_t);
    void* (*start_unpack)(void*, void*, size_t);
    size_t (*packed_size)(void*);
    size_t (*pack)(void*, size_t, void*, size_t);
    int32_t (*unpack)(void*, size_t, const void*, size_t);
    void (*finish)(void*);
};

const Operations kOperations = {
    [](void*, const void* stream, size_t) { return const_cast<void*>(stream); },
    [](void*, void* stream, size_t) { return stream; },
    [](void* state) { return static_cast<size_t>(as_stream(state)->size()); },
    [](void* state, size_t offset, void* dest, size_t max_bytes) {
        const int64_t size = as_stream(state)->pack(offset, static_cast<uint8_t*>(dest), max_bytes);
        return static_cast<size_t>(size);
    },
    [](void* state, size_t offset, const void* src, size_t num_bytes) {
        return as_stream(state)->unpack(offset, static_cast<const uint8_t*>(src), num_bytes) ? kOk : kTruncated;
    },
    [](void*) {},
};

}  // namespace

#define SLIPSTREAM_API extern "C" __attribute__((visibility("default")))

SLIPSTREAM_API const void* slipstream_stream_operations() { return &kOperations; }

// A stream of the rows `job.from`, to be packed or to be unpacked; null if an id is none of its table's rows, if there
// are at most 240 bytes in all, or no memory. The ids must stay. `spoil` makes the checksum wrong that is packed.
SLIPSTREAM_API void* slipstream_begin_stream(const Job* handed_in, uint64_t spoil) {
    const Job job = rows::read_job(handed_in, 0);
    if (job.num_runs * job.run_bytes < xxh3::kMinBytes || !job.from.holds(job.num_runs)) return nullptr;
    return new (std::nothrow) Stream(job, spoil);
}

// All bytes have been unpacked, and the checksum that came with them is theirs.
SLIPSTREAM_API int32_t slipstream_stream_is_whole(void* stream) { return as_stream(stream)->is_whole(); }

SLIPSTREAM_API void slipstream_close_stream(void* stream) { delete as_stream(stream); }
