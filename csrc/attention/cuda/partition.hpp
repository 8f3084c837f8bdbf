#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/host_device.hpp"

// How the tokens of a batch are shared among thread blocks.
//
// Every (KV head, request) pair is a *unit*: its visible tokens, cut into tiles. All units stand in one line,
// head by head and in each head request by request, and every block (a *worker*) gets an equal stretch of
// that line. So the longest share is at most one tile longer than the shortest whatever the lengths are, and
// the grid's size does not depend on them. A stretch that lies within one unit is a *segment*; a unit cut
// into several is put together by the worker that completes it.
namespace lamina::attention::cuda {

// Positions in the index lists, half-open.
struct Tokens {
  std::int32_t begin;
  std::int32_t end;
};

// Which tokens of a request's list attention goes over: without the newest, whose K and V are yet to come, or
// with it.
enum class Which : std::int32_t { kPrevious, kAll };

// What the newest token sees of its request's list, which it is the last of: in a window of w that many,
// itself counted; with chunks of c, those of its own. 0 is no window, or no chunks.
LAMINA_HD Tokens visible(Tokens listed, std::int32_t window, std::int32_t chunk, Which which) {
  const std::int32_t size = listed.end - listed.begin;
  std::int32_t begin = window > 0 && size > window ? listed.end - window : listed.begin;
  if (chunk > 0 && size > 0) {
    const std::int32_t own = listed.begin + (size - 1) / chunk * chunk;
    begin = own > begin ? own : begin;
  }
  const bool newest = which == Which::kAll || listed.begin == listed.end;
  return {begin, newest ? listed.end : listed.end - 1};
}

LAMINA_HD std::int32_t tiles_of(Tokens tokens, std::int32_t tile) {
  return (tokens.end - tokens.begin + tile - 1) / tile;
}

// A worker that gets fewer tiles than this costs more in putting parts together than it saves in reading.
constexpr std::int64_t kFewestTiles = 2;
// Parts of a unit, on average, up to which there are more workers than a device runs at once.
constexpr std::int32_t kJoinedParts = 16;

// The line of all tiles and how many workers share it.
struct Line {
  std::int64_t tiles;
  std::int32_t workers;

  // Never more workers than tiles, so that each has some and the shares of neighbours touch.
  static LAMINA_HD Line among(std::int64_t tiles, std::int32_t most_workers) {
    const std::int64_t wanted = (tiles + kFewestTiles - 1) / kFewestTiles;
    return {tiles, static_cast<std::int32_t>(wanted < most_workers ? wanted : most_workers)};
  }

  // The first tile of a worker's share, which ends where the next one's begins.
  LAMINA_HD std::int64_t share(std::int32_t worker) const { return tiles * worker / workers; }

  // Whose share a tile is in: the last worker w with share(w) <= tile.
  LAMINA_HD std::int32_t worker_of(std::int64_t tile) const {
    return static_cast<std::int32_t>(((tile + 1) * workers - 1) / tiles);
  }
};

// The request that the tile of one head belongs to: the only one with offset[r] <= tile < offset[r + 1],
// where `offset` counts the tiles of the requests before r. Requests without a tile are never it.
LAMINA_HD std::int32_t request_of(const std::int32_t* offset, std::int32_t requests, std::int32_t tile) {
  std::int32_t low = 0;
  std::int32_t high = requests;
  while (high - low > 1) {
    const std::int32_t middle = low + (high - low) / 2;
    if (offset[middle] <= tile) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// The kernels' description of a batch, computed on the device once per step.
struct Plan {
  Line line;
  std::int32_t empty;  // how many requests have no visible token, so no tile
};

// Of each request: the tiles of one head before it (and at the end of them all), and its visible tokens.
struct Requests {
  const std::int32_t* offset;
  const std::int32_t* begin;
  const std::int32_t* end;
  std::int32_t count;
};

// The part of a unit that one worker reads, and the other workers that read it.
struct Segment {
  std::int32_t kv_head;
  std::int32_t request;
  std::int64_t unit;          // kv_head * requests + request
  std::int64_t end;           // on the line: where the worker goes on
  Tokens tokens;              // in the index lists
  std::int32_t first_worker;  // reads the unit's first tile
  std::int32_t parts;         // how many workers read some of it: first_worker and the following ones
  std::int32_t next_request;  // where to look for the next segment's: no later than it, and in its head

  // Along the line a step goes to the next worker, to a later unit, or to both: the sum names a segment
  // uniquely.
  LAMINA_HD std::int64_t part(std::int32_t worker) const { return unit + worker; }
};

LAMINA_HD std::int64_t part_count(std::int64_t units, std::int32_t workers) { return units + workers; }

// The worker's segment that begins at `at`. `request` is the one it belongs to, or an earlier one in the same
// head.
LAMINA_HD Segment segment_at(const Line& line, std::int32_t worker, std::int64_t at, const Requests& requests,
                             std::int32_t request, std::int32_t tile) {
  const std::int32_t tiles_per_head = requests.offset[requests.count];
  Segment match{};
  match.kv_head = static_cast<std::int32_t>(at / tiles_per_head);
  const std::int64_t head_at = static_cast<std::int64_t>(match.kv_head) * tiles_per_head;
  const auto in_head = static_cast<std::int32_t>(at - head_at);
  while (requests.offset[request + 1] <= in_head) ++request;
  match.request = request;
  match.unit = static_cast<std::int64_t>(match.kv_head) * requests.count + request;

  const std::int32_t offset = requests.offset[request];
  const std::int32_t next_offset = requests.offset[request + 1];
  const std::int64_t unit_end = head_at + next_offset;
  match.next_request = next_offset < tiles_per_head ? request + 1 : 0;
  const std::int64_t share_end = line.share(worker + 1);
  match.end = unit_end < share_end ? unit_end : share_end;
  match.tokens.begin = requests.begin[request] + (in_head - offset) * tile;
  const std::int64_t token_end = match.tokens.begin + (match.end - at) * tile;
  const std::int32_t request_end = requests.end[request];
  match.tokens.end = token_end < request_end ? static_cast<std::int32_t>(token_end) : request_end;

  match.first_worker = line.worker_of(head_at + offset);
  match.parts = line.worker_of(unit_end - 1) - match.first_worker + 1;
  return match;
}

// The work plan and the parts of cut units, in one device buffer of the caller's. Its addresses depend on the
// batch and the device only, never on lengths, so that a captured graph finds them where they were.
struct Workspace {
  Plan* plan;
  std::int32_t* first;     // [workers]: the request that a worker's share begins in
  std::int32_t* begin;     // [requests]: visible tokens
  std::int32_t* end;       // [requests]
  std::int32_t* offset;    // [requests + 1]: tiles of one head before each request
  std::int32_t* arrivals;  // [passes][units]: how many workers have left their part; 0 between launches
  float* part_lse;         // [passes][parts][heads per pass]
  float* part_out;         // [passes][parts][heads per pass][value_dim]
  std::size_t bytes;

  struct Size {
    std::int32_t requests;
    std::int32_t kv_heads;
    std::int32_t workers;
    std::int32_t passes;  // passes over the heads of a group, this many at a time
    std::int32_t heads_per_pass;
    std::int32_t value_dim;
  };

  static Workspace at(void* memory, const Size& size) {
    std::size_t used = 0;
    // On integers, because without memory this only counts.
    const auto take = [&](std::size_t bytes) {
      const std::uintptr_t piece = reinterpret_cast<std::uintptr_t>(memory) + used;
      used += (bytes + 255) / 256 * 256;
      return piece;
    };
    const auto requests = static_cast<std::size_t>(size.requests);
    const std::size_t units = requests * static_cast<std::size_t>(size.kv_heads);
    const auto passes = static_cast<std::size_t>(size.passes);
    const std::size_t rows =
        passes * static_cast<std::size_t>(size.heads_per_pass) *
        static_cast<std::size_t>(part_count(static_cast<std::int64_t>(units), size.workers));
    Workspace made{};
    made.plan = reinterpret_cast<Plan*>(take(sizeof(Plan)));
    made.first = reinterpret_cast<std::int32_t*>(take(static_cast<std::size_t>(size.workers) * 4));
    made.begin = reinterpret_cast<std::int32_t*>(take(requests * 4));
    made.end = reinterpret_cast<std::int32_t*>(take(requests * 4));
    made.offset = reinterpret_cast<std::int32_t*>(take((requests + 1) * 4));
    made.arrivals = reinterpret_cast<std::int32_t*>(take(passes * units * 4));
    made.part_lse = reinterpret_cast<float*>(take(rows * 4));
    made.part_out = reinterpret_cast<float*>(take(rows * static_cast<std::size_t>(size.value_dim) * 4));
    made.bytes = used;
    return made;
  }
};

}  // namespace lamina::attention::cuda
