use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;

use super::*;

const NONE: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

fn holder(client: u8, class: BufferClass) -> Holder {
    Holder { client: ClientKey::new(Some(&[client]), NONE), class }
}

fn bytes_of(class: BufferClass) -> usize {
    usage()[class as usize].bytes
}

#[test]
fn one_client_leaves_a_quarter_and_handshakes_have_a_budget_of_their_own() {
    set_limit(4 << 20);
    let take = |client, class| {
        let mut holding: Vec<_> = (0..1000).map(|_| Held::new(holder(client, class))).collect();
        holding.retain_mut(|held| held.resize(16 << 10));
        holding
    };
    let greedy = take(1, BufferClass::Request);
    assert_eq!(greedy.len(), 144, "three quarters of 3 MiB");
    let further =
        holder(1, BufferClass::Response).hold(vec![7; 10_000].into(), &Cell::new(MIN_READ), true);
    assert!(!holder(1, BufferClass::Response).has_share());
    assert!(holder(2, BufferClass::Response).has_share());
    drop(further);
    let mut handshakes: Vec<_> = (0..1000).map(|_| Waits::of(1, BufferClass::Handshake)).collect();
    assert!(handshakes.iter_mut().all(|it| it.settle(16 << 10)));
    assert_eq!(bytes_of(BufferClass::Handshake), 48 << 14, "three quarters of 1 MiB");
    drop(handshakes);
    assert_eq!(bytes_of(BufferClass::Handshake), 0);
    assert_eq!(max_read(), MIN_READ);
    drop(greedy);
    assert_eq!((bytes_of(BufferClass::Request), max_read()), (0, usize::MAX));
    assert!(LEDGER.with_borrow(|it| it.clients.is_empty()));
}

#[test]
fn a_piece_is_held_until_its_last_part_is_dropped() {
    let of_response = holder(1, BufferClass::Response);
    let uncounted = Cell::new(MIN_READ - 100);
    let covered = of_response.hold(vec![7; 100].into(), &uncounted, true);
    assert_eq!(bytes_of(BufferClass::Response), 0);
    let stream = of_response.hold(vec![7; 100].into(), &uncounted, false);
    assert_eq!((bytes_of(BufferClass::Response), uncounted.get()), (100, MIN_READ));
    drop(stream);
    let small = of_response.hold(vec![7; 100].into(), &uncounted, true);
    assert_eq!((bytes_of(BufferClass::Response), uncounted.get()), (MIN_READ + 100, 0));
    drop((covered, small));
    let piece = of_response.hold(vec![7; 10_000].into(), &Cell::new(MIN_READ), true);
    let mut rest = piece.slice(..);
    let part = rest.split_to(1);
    drop((piece, rest));
    assert_eq!(bytes_of(BufferClass::Response), MIN_READ + 10_000);
    assert_eq!(part, [7][..]);
    drop(part);
    assert_eq!(bytes_of(BufferClass::Response), 0);
}

#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Something that waits in the ledger.
struct Waits {
    held: Held,
    wakes: Arc<Wakes>,
}

impl Waits {
    fn of(client: u8, class: BufferClass) -> Self {
        Self { held: Held::new(holder(client, class)), wakes: Arc::default() }
    }

    fn waker(&self) -> Waker {
        Arc::clone(&self.wakes).into()
    }

    fn share(&mut self) -> bool {
        let waker = self.waker();
        self.held.poll_share(&Context::from_waker(&waker)).is_ready()
    }

    fn settle(&mut self, bytes: usize) -> bool {
        let waker = self.waker();
        self.held.settle(bytes, &Context::from_waker(&waker))
    }

    fn wakes(&self) -> usize {
        self.wakes.0.load(Ordering::Relaxed)
    }
}

#[test]
fn tasks_are_woken_one_after_the_other_when_bytes_are_given_back() {
    set_limit(4 << 20);
    let mut held = [1, 1, 2].map(|client| Held::new(holder(client, BufferClass::Tls)));
    // The first client is beyond its share, and the second one is at its end.
    [2 << 20, 400 << 10, 1 << 10].into_iter().zip(&mut held).for_each(|(it, held)| held.set(it));
    let mut waits = [1, 1, 1].map(|client| Waits::of(client, BufferClass::Response));
    assert!(waits.iter_mut().all(|it| !it.share()));
    let wakes = |waits: &[Waits; 3]| waits.each_ref().map(Waits::wakes);
    held[2].set(0);
    assert_eq!(wakes(&waits), [0, 0, 0], "the client is beyond its share");
    held[1].set(0);
    assert_eq!(wakes(&waits), [1, 0, 0]);
    assert!(waits[0].share());
    assert_eq!(wakes(&waits), [1, 1, 0], "there may be more");
    let [_, second, third] = waits;
    drop(second);
    assert_eq!(third.wakes(), 1, "the second one takes nothing");
    drop(third);
    drop(held);
    assert!(LEDGER.with_borrow(|it| it.clients.is_empty()));
}

#[test]
fn the_address_that_holds_most_loses_its_oldest_handshakes() {
    set_limit(4 << 20);
    let mut large: Vec<_> = (0..48).map(|_| Waits::of(1, BufferClass::Handshake)).collect();
    assert!(large.iter_mut().all(|it| it.settle(16 << 10)), "three quarters of 1 MiB");
    assert!(large[0].settle(16 << 10), "it stays the oldest one");
    let mut further = Waits::of(1, BufferClass::Handshake);
    assert!(further.settle(16 << 10));
    assert_eq!(large[0].wakes(), 1, "its own oldest one");
    assert!(!large[0].settle(16 << 10));
    large.remove(0);
    large.push(further);
    let mut others: Vec<_> = (2..22).map(|it| Waits::of(it, BufferClass::Handshake)).collect();
    assert!(others.iter_mut().all(|it| it.settle(16 << 10)), "each has room");
    let evicted: Vec<_> = large.iter().map(Waits::wakes).collect();
    let count = evicted.iter().sum::<usize>();
    assert!((4..=20).contains(&count), "{count}");
    assert!(evicted[..count].iter().all(|wakes| *wakes == 1), "{evicted:?}");
    assert!(!large[0].settle(16 << 10) && large[47].settle(16 << 10));
    let bytes = (48 - count + 20) * (16 << 10);
    assert_eq!(bytes_of(BufferClass::Handshake), bytes);
    drop((large, others));
    assert_eq!(bytes_of(BufferClass::Handshake), 0);
    assert!(LEDGER.with_borrow(|it| it.handshakes.is_empty()));
}

#[test]
fn bytes_that_were_given_back_are_not_evicted() {
    set_limit(4 << 20);
    let mut handshakes: Vec<_> = (0..48).map(|_| Waits::of(1, BufferClass::Handshake)).collect();
    assert!(handshakes.iter_mut().all(|it| it.settle(16 << 10)));
    assert!(handshakes[0].held.release());
    let mut others = [1, 1].map(|client| Waits::of(client, BufferClass::Handshake));
    assert!(others.iter_mut().all(|it| it.settle(16 << 10)));
    assert_eq!([0, 1, 2].map(|it| handshakes[it].wakes()), [0, 1, 0]);
    assert_eq!(bytes_of(BufferClass::Handshake), 48 << 14);
}

#[test]
fn without_a_limit_nothing_is_rejected() {
    set_limit(usize::MAX);
    let mut held = Held::new(holder(1, BufferClass::Tls));
    assert!(held.resize(1 << 40) && holder(1, BufferClass::Tls).has_share());
    assert!(Held::default().resize(1 << 40));
}
