"""Sentences to time models on where none are given: of ragged lengths, as real texts are."""

SENTENCES = (
    "Not again.",
    "The ferry leaves at nine.",
    "She wrote the last chapter on a train between two cities and never read it again.",
    "Rain.",
    "A bakery on our street sells rye bread that keeps for a week, if nobody finds it first.",
    "When the river rose above the second mark on the bridge, the council asked everyone who lived below the mill "
    "to carry what they could to the school, and to leave the rest; by midnight the lower road was gone, the "
    "telephone was silent, and the only light in the valley came from a lantern that someone had hung in the bell "
    "tower.",
    "Who left the gate open?",
    "Turn the valve a quarter to the left, wait until the needle has settled, and write the pressure into the table.",
    "Our quarterly revenue grew by four per cent, chiefly because the new warehouse shortened deliveries in the "
    "north; costs grew by six, which the board puts down to fuel and to a settlement with a former supplier.",
    "It is a small film with a large heart and, regrettably, no ending at all.",
    "Clocks disagree.",
    "The committee met, as it had met every Thursday for eleven years, in a room without windows, and decided nothing.",
    "In this note we show that the estimate holds for every bounded domain with a smooth boundary. The proof goes "
    "by induction on the dimension. For the line there is nothing to prove; for the plane it is a theorem that has "
    "been known for a century, and we only have to follow the constants. The step upwards takes a slice of the "
    "domain, applies the estimate to it, and integrates over all slices, where the one difficulty is that a slice "
    "need not be connected; we get around it by counting its parts, of which there are finitely many for almost "
    "every slice.",
    "Two eggs, a cup of flour, a pinch of salt, and patience.",
    "He had been told that the mountain could be crossed in a day by anyone who started early and did not stop to "
    "look.",
    "No refunds after thirty days.",
    "The patient reports a dull pain below the left shoulder that grows worse in the cold and has not answered to "
    "rest.",
    "Please find attached the minutes of our last meeting; if I have forgotten anything, tell me before Friday.",
    "My grandmother kept bees behind the chapel, and on summer evenings she would sit among the hives with a book "
    "in her lap, turning the pages so slowly that the bees walked over them as though they were petals, and when I "
    "asked her whether she was afraid of being stung she said that she had been stung by everything else already.",
    "Good value, bad sound.",
    "The satellite lost contact over the southern ocean and found it again eleven minutes later, with a fresher clock.",
    "Why does bread taste better when somebody else has cut it?",
    "Goods are checked on arrival, sorted by weight, and sent on within the hour.",
    "After the second goal the visitors stopped running, and the rest of the match was a long walk in the rain.",
)
