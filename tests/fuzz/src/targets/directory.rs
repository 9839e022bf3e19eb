//! The places of the sockets, as the environment gives them.

use arbitrary::{Result, Unstructured};
use deepres_abi::directory::{DIRECTORY_VARIABLE, Places, SOCKET_VARIABLE};

/// There is always a place, and the place of a user's own daemon is among those that are searched.
pub fn run(data: &[u8]) {
    // If the input is too short, there is no environment to test.
    let _ = look(&mut Unstructured::new(data));
}

fn look(input: &mut Unstructured<'_>) -> Result<()> {
    let user = input.arbitrary()?;
    let mut words = Vec::new();
    for _ in 0..3 {
        words.push(input.arbitrary::<Option<Vec<u8>>>()?);
    }
    let variable = |name| match name {
        DIRECTORY_VARIABLE => words[0].clone(),
        SOCKET_VARIABLE => words[1].clone(),
        _ => words[2].clone(),
    };
    let places = Places::read(user, variable);
    let own: Vec<u8> = places.own().path().collect();
    assert!(!own.is_empty());
    let candidates: Vec<Vec<u8>> = places.candidates().map(|place| place.path().collect()).collect();
    assert!(candidates.contains(&own));
    let is_named = |word: &Option<Vec<u8>>| word.as_ref().is_some_and(|word| !word.is_empty());
    if is_named(&words[0]) {
        assert_eq!(Some(own), words[0]);
    }
    assert_eq!(places.socket().is_some(), is_named(&words[1]));
    Ok(())
}
