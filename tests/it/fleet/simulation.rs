//! A roll-out over 1,000 simulated instances: the real guard and recent clients of each, with a
//! simulated network and clock. `--nocapture` prints the curve of `docs/fleet.md`.

use std::fs::read_to_string;
use std::sync::Arc;
use std::time::SystemTime;

use keygate_core::guard::{
    Decision, ExactList, FingerprintList, Guard, Policy, RecentClients, WeakChecks,
};
use keygate_core::spki::Fingerprint;
use rustls::pki_types::CertificateDer;

use crate::support::pki::{Kind, Pki};

/// Number of instances of each ring.
const RINGS: [usize; 3] = [10, 90, 900];
/// Seconds between two polls, with a tenth of jitter; of the timer of a ring; of `SOAK`.
const POLL: f64 = 30.0;
const TIMER: u64 = 60;
const SOAK: u64 = 600;
/// `MAX_NEW_HITS` of the gate.
const MAX_NEW_HITS: usize = 20;
/// Number of clients, and of the clients that each instance has seen.
const CLIENTS: usize = 200;
const SEEN: usize = 20;
/// Seconds that are simulated.
const END: u64 = 7200;

/// The network between the instances and the store with Prometheus.
#[derive(Clone, Copy)]
struct Network {
    /// Percentage of polls that are lost.
    loss: u64,
    /// One instance in ten reaches nothing in this time, in seconds.
    partition: (u64, u64),
}

/// An instance with the state of keygate that decides.
struct Instance {
    ring: usize,
    guard: Arc<Guard>,
    recent: RecentClients,
    /// When it loaded the new version, and the clients that the version newly rejects.
    loaded: Option<(u64, usize)>,
    /// Whether it rejects the stolen key.
    rejects: bool,
    next_poll: f64,
}

/// Numbers that look random and are the same each time (xorshift).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

struct World {
    /// The certificates of the clients; the first one has the key that is stolen.
    clients: Vec<CertificateDer<'static>>,
    spkis: Vec<Vec<u8>>,
    now: SystemTime,
    policy: Policy,
}

impl World {
    fn new() -> Self {
        let pki = Pki::new();
        let clients = (0..CLIENTS).map(|it| pki.client(&format!("client-{it}"), Kind::P256));
        let clients: Vec<_> = clients.collect();
        let spkis = clients.iter().map(|it| it.spki.clone()).collect();
        let clients = clients.iter().map(|it| it.credentials().0.swap_remove(0)).collect();
        Self { clients, spkis, now: SystemTime::now(), policy: Policy::default() }
    }

    /// The guard of a list with these clients.
    fn guard(&self, listed: &[usize]) -> Arc<Guard> {
        // A key of nobody, because a list has an entry.
        let keys = listed.iter().map(|it| &self.spkis[*it][..]).chain([&b"nobody"[..]]);
        let text: String = keys.map(|spki| format!("{}\n", Fingerprint::of(spki))).collect();
        let list = FingerprintList::parse("deny", &text).unwrap();
        Arc::new(Guard::default().with_lists([ExactList::from(Arc::new(list))]))
    }

    fn is_admitted(&self, guard: &Guard, client: usize) -> bool {
        let verdict = guard.judge(&self.clients[client], self.now);
        self.policy.decide(&verdict) == Decision::Admit
    }

    fn instances(&self, numbers: &mut Numbers) -> Vec<Instance> {
        let before = self.guard(&[]);
        let rings = (0..RINGS.len()).flat_map(|ring| vec![ring; RINGS[ring]]);
        let instances = rings.enumerate().map(|(index, ring)| {
            let recent = RecentClients::new(1);
            // One instance in ten knows the stolen key. Each knows some of the other clients.
            let stolen = (index % 10 == 3).then_some(0);
            let others =
                (1..SEEN).map(|_| 1 + usize::try_from(numbers.below(CLIENTS as u64 - 1)).unwrap());
            for client in stolen.into_iter().chain(others.collect::<Vec<_>>()) {
                assert!(self.is_admitted(&before, client));
                let certificate = &self.clients[client];
                let presented = std::slice::from_ref(certificate);
                let subject = || client.to_string();
                let shard = recent.shard(0).unwrap();
                shard.record_path(0, WeakChecks::NONE, &[certificate], presented, subject);
            }
            let next_poll = numbers.below(30_000) as f64 / 1000.0;
            Instance {
                ring,
                guard: Arc::clone(&before),
                recent,
                loaded: None,
                rejects: false,
                next_poll,
            }
        });
        instances.collect()
    }

    /// The dry run of `after`, which is then in use.
    fn load(&self, instance: &mut Instance, after: &Arc<Guard>, at: u64) {
        let before = Arc::clone(&instance.guard);
        let new_hits = instance.recent.matching(0, |_, client| {
            client.is_rejected(after, &self.policy, self.now)
                && !client.is_rejected(&before, &self.policy, self.now)
        });
        instance.guard = Arc::clone(after);
        instance.loaded = Some((at, new_hits.count));
        instance.rejects = !self.is_admitted(&instance.guard, 0);
    }

    /// Publishes a list with the clients `listed` in ring 0 at second 0. Returns the number of
    /// instances that reject the stolen key in each second.
    fn roll_out(&self, listed: &[usize], network: Network) -> Vec<usize> {
        let mut numbers = Numbers(0x9E37_79B9_7F4A_7C15);
        let mut instances = self.instances(&mut numbers);
        let after = self.guard(listed);
        let mut published = 1;
        let mut curve = Vec::new();
        for second in 0..END {
            let is_cut = |index: usize| {
                let (from, to) = network.partition;
                index.is_multiple_of(10) && (from..to).contains(&second)
            };
            for (index, instance) in instances.iter_mut().enumerate() {
                if (second as f64) < instance.next_poll {
                    continue;
                }
                instance.next_poll += POLL * (0.9 + numbers.below(200) as f64 / 1000.0);
                let is_lost = is_cut(index) || numbers.below(100) < network.loss;
                let is_new = instance.loaded.is_none() && instance.ring < published;
                if is_new && !is_lost {
                    self.load(instance, &after, second);
                }
            }
            if second % TIMER == 0 && published < RINGS.len() {
                // gate.promql: all instances of the ring have had the version for SOAK, and
                // Prometheus sees it; together they newly reject few clients.
                let ring = instances.iter().enumerate().filter(|(_, it)| it.ring == published - 1);
                let ring: Vec<_> = ring.collect();
                let has_soaked = |index: usize, it: &Instance| {
                    !is_cut(index) && it.loaded.is_some_and(|(at, _)| at + SOAK <= second)
                };
                let new_hits: usize =
                    ring.iter().filter_map(|(_, it)| it.loaded).map(|(_, hits)| hits).sum();
                let is_open = ring.iter().all(|(index, it)| has_soaked(*index, it))
                    && new_hits <= MAX_NEW_HITS;
                published += usize::from(is_open);
            }
            curve.push(instances.iter().filter(|it| it.rejects).count());
        }
        // No verdict is wrong, whatever the network did: the list in use decides.
        for (index, instance) in instances.iter().enumerate() {
            for client in (0..CLIENTS).skip(index % 10).step_by(10) {
                let is_listed = instance.loaded.is_some() && listed.contains(&client);
                assert_eq!(self.is_admitted(&instance.guard, client), !is_listed);
            }
        }
        curve
    }
}

/// The second in which `count` instances reject the key.
fn reached(curve: &[usize], count: usize) -> usize {
    curve.iter().position(|it| *it >= count).unwrap()
}

#[test]
fn a_good_list_reaches_1000_instances_under_loss_and_partition_and_a_bad_one_stops_in_ring_0() {
    let (world, page) = (World::new(), read_to_string("docs/fleet.md").unwrap());
    let all = RINGS.iter().sum();
    let networks = [
        ("no loss", Network { loss: 0, partition: (0, 0) }),
        ("5 % of the polls are lost", Network { loss: 5, partition: (0, 0) }),
        ("30 % of the polls are lost", Network { loss: 30, partition: (0, 0) }),
        (
            "5 % are lost, and one in ten is cut off from minute 5 to 25",
            Network { loss: 5, partition: (300, 1500) },
        ),
    ];
    for (name, network) in networks {
        let curve = world.roll_out(&[0], network);
        assert_eq!(curve.last(), Some(&all), "{name}");
        let times = [RINGS[0], RINGS[0] + RINGS[1], all / 2, all * 99 / 100, all];
        let times = times.map(|count| format!("{} s", reached(&curve, count)));
        let row = format!("| {name} | {} |", times.join(" | "));
        println!("{row}");
        assert!(page.contains(&row), "docs/fleet.md lacks {row}");
        if network.loss == 0 {
            // The formula of the page.
            assert!(reached(&curve, all) as f64 <= 33.0 + 2.0 * (600.0 + 60.0 + 33.0));
        }
    }
    let half: Vec<usize> = (0..CLIENTS / 2).collect();
    for (name, network) in networks {
        let curve = world.roll_out(&half, network);
        assert_eq!(curve.iter().max(), Some(&RINGS[0]), "{name}: a bad list leaves ring 0");
    }
}
