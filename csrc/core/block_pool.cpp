#include "core/block_pool.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

namespace lamina {

std::uint32_t BlockPool::append(Stretch stretch) {
  std::uint32_t place = 0;
  if (unused_.empty()) {
    place = static_cast<std::uint32_t>(line_.size());
    line_.emplace_back();
  } else {
    place = unused_.back();
    unused_.pop_back();
  }
  stretch.before = line_[0].before;
  stretch.after = 0;
  line_[place] = stretch;
  line_[stretch.before].after = place;
  line_[0].before = place;
  return place;
}

void BlockPool::remove(std::uint32_t place) {
  const Stretch& stretch = line_[place];
  line_[stretch.before].after = stretch.after;
  line_[stretch.after].before = stretch.before;
  unused_.push_back(place);
}

void BlockPool::take(std::int64_t blocks) {
  free_ -= blocks;
  while (blocks > 0) {
    const std::uint32_t place = line_[0].after;
    Stretch& front = line_[place];
    const std::int64_t taken = std::min(blocks, front.blocks);
    front.blocks -= taken;
    blocks -= taken;
    if (front.kind == Kind::kPrefix) {
      // Without one of its blocks it can no longer be had as it was.
      prefixes_.erase(front.of);
      front.kind = Kind::kNothing;
    }
    if (front.blocks > 0) continue;
    if (front.kind == Kind::kRequest) retained_.erase(static_cast<Request>(front.of));
    remove(place);
  }
}

void BlockPool::give(std::int64_t blocks) {
  if (blocks == 0) return;
  free_ += blocks;
  Stretch& back = line_[line_[0].before];
  if (line_[0].before != 0 && back.kind == Kind::kNothing) {
    back.blocks += blocks;
  } else {
    append({blocks, Kind::kNothing, 0});
  }
}

void BlockPool::hold(std::int64_t id) {
  Prefix& prefix = prefixes_.at(id);
  if (prefix.owners++ > 0) return;
  free_ -= prefix.blocks;
  remove(prefix.stretch);
}

void BlockPool::add(std::int64_t id, std::int64_t blocks) {
  if (prefixes_.try_emplace(id, Prefix{blocks, 1, 0}).second) return;
  hold(id);
  give(blocks);
}

void BlockPool::drop(std::int64_t id) {
  Prefix& prefix = prefixes_.at(id);
  if (--prefix.owners > 0) return;
  free_ += prefix.blocks;
  prefix.stretch = append({prefix.blocks, Kind::kPrefix, id});
}

void BlockPool::keep(Request request, std::int64_t blocks) {
  if (blocks == 0) return;
  free_ += blocks;
  retained_[request] = append({blocks, Kind::kRequest, request});
}

std::int64_t BlockPool::retained(Request request) const {
  const auto match = retained_.find(request);
  return match == retained_.end() ? 0 : line_[match->second].blocks;
}

std::int64_t BlockPool::take_retained(Request request) {
  const auto match = retained_.find(request);
  if (match == retained_.end()) return 0;
  const std::int64_t blocks = line_[match->second].blocks;
  free_ -= blocks;
  remove(match->second);
  retained_.erase(match);
  return blocks;
}

void BlockPool::forget(Request request) {
  const auto match = retained_.find(request);
  if (match == retained_.end()) return;
  line_[match->second].kind = Kind::kNothing;
  retained_.erase(match);
}

void BlockPool::check_integrity() const {
  const auto expect = [](bool holds, const char* what) {
    if (!holds) throw std::logic_error(std::string("block pool: ") + what);
  };
  std::int64_t in_line = 0, prefixes = 0, requests = 0;
  for (std::uint32_t place = line_[0].after; place != 0; place = line_[place].after) {
    const Stretch& stretch = line_[place];
    expect(stretch.blocks > 0, "an empty stretch stands in the line");
    expect(line_[stretch.after].before == place, "the line is broken");
    in_line += stretch.blocks;
    if (stretch.kind == Kind::kPrefix) {
      const auto match = prefixes_.find(stretch.of);
      expect(match != prefixes_.end() && match->second.owners == 0 && match->second.stretch == place &&
                 match->second.blocks == stretch.blocks,
             "a prefix block in the line is not what the pool knows of it");
      ++prefixes;
    } else if (stretch.kind == Kind::kRequest) {
      const auto match = retained_.find(static_cast<Request>(stretch.of));
      expect(match != retained_.end() && match->second == place, "blocks of a preempted request are lost");
      ++requests;
    }
  }
  std::int64_t stored = 0;
  for (const auto& [id, prefix] : prefixes_) stored += prefix.owners > 0 ? 1 : 0;
  expect(in_line == free_, "free blocks are counted wrong");
  expect(free_ >= 0 && free_ <= capacity_, "a pool is overfull");
  expect(prefixes + stored == static_cast<std::int64_t>(prefixes_.size()), "a prefix block is nowhere");
  expect(requests == static_cast<std::int64_t>(retained_.size()), "a preempted request's blocks are nowhere");
}

}  // namespace lamina
