//! The routes between servers, each over a separate network, so that one server can be cut off from the others.

use super::nats::{Plan, Servers};
use super::proxy::{Direction, Network};

/// How a server is cut off from the others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Partition {
    /// Connections break, and there are no new ones.
    Broken,
    /// Connections stay, and nothing gets through.
    Silent,
    /// Its outgoing data is delayed.
    Mute,
    /// Its incoming data is delayed.
    Deaf,
}

/// A network for each ordered pair of servers.
pub struct Routes(Vec<Route>);

/// What one server has connected to another one.
struct Route {
    from: usize,
    to: usize,
    network: Network,
}

impl Routes {
    /// Routes between the servers that listen for each other at these ports.
    fn between(ports: &[u16]) -> Routes {
        let pairs = (0..ports.len()).flat_map(|from| (0..ports.len()).map(move |to| (from, to)));
        let pairs = pairs.filter(|(from, to)| from != to);
        Routes(
            pairs
                .map(|(from, to)| Route {
                    from,
                    to,
                    network: Network::to(&[ports[to]]),
                })
                .collect(),
        )
    }

    /// Starts servers that reach each other over these routes alone.
    pub fn start_servers(count: usize) -> (Routes, Servers) {
        let mut plan = Plan::of(count);
        let routes = Routes::between(&plan.route_ports());
        plan.routes = (0..count).map(|server| routes.urls_of(server)).collect();
        (routes, Servers::start_as(plan))
    }

    /// Where a server finds the others.
    fn urls_of(&self, server: usize) -> Vec<String> {
        self.0
            .iter()
            .filter(|route| route.from == server)
            .map(|route| route.network.urls())
            .collect()
    }

    /// Cuts a server off from the others until this is healed.
    pub fn part(&self, server: usize, how: Partition) {
        for Route { from, network, .. } in self
            .0
            .iter()
            .filter(|route| [route.from, route.to].contains(&server))
        {
            let (sent, heard) = match *from == server {
                true => (Direction::ToServers, Direction::ToNode),
                false => (Direction::ToNode, Direction::ToServers),
            };
            match how {
                Partition::Broken => network.cut(),
                Partition::Silent => [sent, heard]
                    .into_iter()
                    .for_each(|direction| network.hold(direction)),
                Partition::Mute => network.hold(sent),
                Partition::Deaf => network.hold(heard),
            }
        }
    }

    pub fn heal(&self) {
        self.0.iter().for_each(|route| route.network.release());
    }
}
