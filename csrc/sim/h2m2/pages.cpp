#include "sim/h2m2/pages.hpp"

#include <string>

namespace lamina::h2m2 {

namespace {

const char* name(Where side) { return side == Where::kHbm ? "HBM" : "LPDDR"; }

std::string page_on(Where side, std::uint32_t page) {
  return "page " + std::to_string(page) + " in the " + name(side) + " table";
}

std::string frame_of(Where side, std::uint32_t frame) {
  return std::string(name(side)) + " frame " + std::to_string(frame);
}

std::size_t checked(std::int64_t count, const char* what) {
  if (count < 0 || count >= Pages::kNone) {
    throw std::invalid_argument(std::string("there are ") + std::to_string(count) + " " + what +
                                " but there must be between 0 and 2^32 - 2");
  }
  return static_cast<std::size_t>(count);
}

[[noreturn]] void broken(const std::string& what) { throw std::logic_error(what); }

}  // namespace

Pages::Pages(std::int64_t logical_pages, std::int64_t hbm_frames, std::int64_t lpddr_frames) {
  for (const Where side : {Where::kHbm, Where::kLpddr}) {
    const std::size_t frames = checked(side == Where::kHbm ? hbm_frames : lpddr_frames, "frames");
    Bank& bank = of(side);
    bank.table.assign(checked(logical_pages, "logical pages"), kNone);
    bank.owner.assign(frames, kNone);
    bank.free_frames.resize(frames);
    for (std::size_t i = 0; i < frames; ++i) bank.free_frames[i] = static_cast<Frame>(frames - 1 - i);
  }
}

std::int64_t Pages::table_bytes(std::int64_t logical_bytes, std::int64_t page_bytes) {
  if (logical_bytes < 0 || page_bytes < 1) throw std::invalid_argument("a page has at least one byte");
  constexpr std::int64_t kEntryBytes = 8;
  return (logical_bytes / page_bytes + (logical_bytes % page_bytes != 0)) * kEntryBytes;
}

void Pages::map(Where side, Page page) {
  require_absent(side, page);
  require_free(side);
  Bank& bank = of(side);
  const Frame frame = bank.free_frames.back();
  bank.free_frames.pop_back();
  bank.table[page] = frame;
  bank.owner[frame] = page;
}

void Pages::unmap(Where side, Page page) {
  const Frame frame = this->frame(side, page);
  if (frame == kNone) throw std::invalid_argument(page_on(side, page) + " has no frame to give back");
  Bank& bank = of(side);
  bank.table[page] = kNone;
  bank.owner[frame] = kNone;
  bank.free_frames.push_back(frame);  // has room for all frames since the beginning: cannot throw
}

void Pages::move(Page page, Where to) {
  require_absent(to, page);
  if (!mapped(other(to), page)) {
    throw std::invalid_argument(page_on(other(to), page) + " has no frame to move from");
  }
  map(to, page);
  unmap(other(to), page);
}

Pages::Frame Pages::frame(Where side, Page page) const {
  require_known(page);
  return of(side).table[page];
}

void Pages::check_integrity() const {
  for (const Where side : {Where::kHbm, Where::kLpddr}) check_side(side);
}

void Pages::check_side(Where side) const {
  const Bank& bank = of(side);
  std::vector<bool> is_free(bank.owner.size());
  for (const Frame frame : bank.free_frames) {
    if (frame >= is_free.size()) broken("there is no such free frame: " + frame_of(side, frame));
    if (is_free[frame]) broken(frame_of(side, frame) + " is free twice");
    if (bank.owner[frame] != kNone) broken(frame_of(side, frame) + " is free and has an owner");
    is_free[frame] = true;
  }
  for (Page page = 0; page < bank.table.size(); ++page) {
    const Frame frame = bank.table[page];
    if (frame == kNone) continue;
    if (frame >= is_free.size()) broken(page_on(side, page) + " is at a frame that there is not");
    if (is_free[frame]) broken(page_on(side, page) + " is at a free frame");
    if (bank.owner[frame] != page) broken(page_on(side, page) + " is at a frame that another page owns");
  }
  for (Frame frame = 0; frame < bank.owner.size(); ++frame) {
    const Page page = bank.owner[frame];
    if (page == kNone && !is_free[frame]) broken(frame_of(side, frame) + " is lost: neither free nor owned");
    if (page == kNone) continue;
    if (page >= bank.table.size()) broken(frame_of(side, frame) + " is owned by a page that there is not");
    if (bank.table[page] != frame) broken(frame_of(side, frame) + " is owned by a page that is not there");
  }
}

void Pages::require_known(Page page) const {
  if (page < of(Where::kHbm).table.size()) return;
  throw std::out_of_range("page " + std::to_string(page) + " is outside the logical space of " +
                          std::to_string(logical_pages()) + " pages");
}

void Pages::require_absent(Where side, Page page) const {
  if (mapped(side, page)) throw std::invalid_argument(page_on(side, page) + " has a frame already");
}

void Pages::require_free(Where side) const {
  if (of(side).free_frames.empty()) throw NoRoom(std::string("no ") + name(side) + " frame is free");
}

}  // namespace lamina::h2m2
